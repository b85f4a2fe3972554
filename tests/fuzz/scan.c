/* codec/scan against msgpack-c: what the scan accepts, msgpack-c decodes to the same length, whole and within its
 * nesting; a scan that is given the bytes one at a time says the same as one that gets them at once.
 *
 * The input's bytes are the message. */
#include <msgpack.h>
#include <string.h>

#include "codec/scan.h"
#include "tests/fuzz/fuzz.h"

enum { LIMIT = 4096 };

/* Depth of arrays and maps that hold something. */
static unsigned depth_of(const msgpack_object *o)
{
    unsigned deepest = 0, d;

    if (o->type == MSGPACK_OBJECT_ARRAY) {
        for (uint32_t i = 0; i < o->via.array.size; i++) {
            d = depth_of(&o->via.array.ptr[i]);
            deepest = d > deepest ? d : deepest;
        }
        return o->via.array.size ? deepest + 1 : 0;
    }
    if (o->type == MSGPACK_OBJECT_MAP) {
        for (uint32_t i = 0; i < 2 * o->via.map.size; i++) {
            const msgpack_object_kv *kv = &o->via.map.ptr[i / 2];

            d = depth_of(i % 2 ? &kv->val : &kv->key);
            deepest = d > deepest ? d : deepest;
        }
        return o->via.map.size ? deepest + 1 : 0;
    }
    FUZZ_CHECK(o->type != MSGPACK_OBJECT_EXT);
    return 0;
}

static void check_in_steps(const uint8_t *data, size_t size, enum scan_result whole, size_t end)
{
    enum scan_result r = SCAN_MORE;
    struct scan s;

    scan_reset(&s);
    for (size_t n = 1; n <= size && r == SCAN_MORE; n++)
        r = scan_value(&s, data, n, LIMIT);
    /* A step may see that a message is too long before or after it sees another fault; both are refusals. */
    FUZZ_CHECK((r == SCAN_COMPLETE) == (whole == SCAN_COMPLETE) && (r == SCAN_MORE) == (whole == SCAN_MORE));
    FUZZ_CHECK(r != SCAN_COMPLETE || s.position == end);
}

/* Paused after every `part` values it says the same in the end, and has counted as many. */
static void check_in_parts(const uint8_t *data, size_t size, enum scan_result whole, const struct scan *expected,
                           uint64_t part)
{
    enum scan_result r = SCAN_PAUSED;
    struct scan s;

    scan_reset(&s);
    while (r == SCAN_PAUSED) {
        const uint64_t before = s.values;

        r = scan_some(&s, data, size, LIMIT, part);
        FUZZ_CHECK(s.values - before == part || r != SCAN_PAUSED);
        FUZZ_CHECK(s.values - before <= part);
    }
    FUZZ_CHECK(r == whole && s.position == expected->position && s.values == expected->values);
}

/* Arrays and maps included. */
static uint64_t count_values(const msgpack_object *o)
{
    uint64_t n = 1;

    for (uint32_t i = 0; o->type == MSGPACK_OBJECT_ARRAY && i < o->via.array.size; i++)
        n += count_values(&o->via.array.ptr[i]);
    for (uint32_t i = 0; o->type == MSGPACK_OBJECT_MAP && i < o->via.map.size; i++)
        n += count_values(&o->via.map.ptr[i].key) + count_values(&o->via.map.ptr[i].val);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum scan_result r;
    struct scan s;

    if (!size)
        return 0;
    scan_reset(&s);
    r = scan_value(&s, data, size, LIMIT);
    FUZZ_CHECK(s.position <= size && s.depth <= SCAN_MAX_DEPTH);
    if (r == SCAN_MORE)
        for (unsigned i = 0; i < s.depth; i++)
            FUZZ_CHECK(s.remaining[i] <= LIMIT); /* what is announced fits */
    check_in_steps(data, size, r, s.position);
    check_in_parts(data, size, r, &s, 1);
    check_in_parts(data, size, r, &s, 7);
    if (r == SCAN_COMPLETE) {
        msgpack_unpacked unpacked;
        size_t offset = 0;

        FUZZ_CHECK(s.position <= LIMIT);
        msgpack_unpacked_init(&unpacked);
        FUZZ_CHECK(msgpack_unpack_next(&unpacked, (const char *)data, size, &offset) == MSGPACK_UNPACK_SUCCESS);
        FUZZ_CHECK(offset == s.position);
        FUZZ_CHECK(depth_of(&unpacked.data) <= SCAN_MAX_DEPTH);
        FUZZ_CHECK(count_values(&unpacked.data) == s.values);
        msgpack_unpacked_destroy(&unpacked);
    }
    return 0;
}

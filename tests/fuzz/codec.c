/* The codec against msgpack-c: both take and refuse the same messages within the codec's limits, both understand the
 * same by them, and what the codec's writer makes of them are msgpack-c's own bytes. A scan says the same whether its
 * bytes come one at a time or at once.
 *
 * The input's bytes are the message. */
#include <msgpack.h>
#include <string.h>

#include "codec/read.h"
#include "codec/scan.h"
#include "codec/write.h"
#include "tests/fuzz/fuzz.h"

enum { LIMIT = 4096, MAX_FDS = 16 };

/* What compare() has seen of a message, and where the codec's writer goes on with it. */
struct walk {
    uint64_t values;  /* arrays and maps included */
    unsigned deepest; /* of arrays and maps that hold something */
    unsigned char *to;
};

static const unsigned char *compare(struct walk *w, const unsigned char *at, const msgpack_object *o, unsigned depth);

static const unsigned char *compare_children(struct walk *w, const struct codec_item *item, const msgpack_object *o,
                                             unsigned depth)
{
    const unsigned char *at = item->next;

    if (item->count && depth > w->deepest)
        w->deepest = depth;
    if (o->type == MSGPACK_OBJECT_ARRAY) {
        FUZZ_CHECK(item->type == CODEC_ARRAY && item->count == o->via.array.size);
        codec_write_array(&w->to, item->count);
        for (uint32_t i = 0; i < item->count; i++)
            at = compare(w, at, &o->via.array.ptr[i], depth);
        return at;
    }
    FUZZ_CHECK(o->type == MSGPACK_OBJECT_MAP && item->type == CODEC_MAP && item->count == o->via.map.size);
    codec_write_map(&w->to, item->count);
    for (uint32_t i = 0; i < item->count; i++) {
        at = compare(w, at, &o->via.map.ptr[i].key, depth);
        at = compare(w, at, &o->via.map.ptr[i].val, depth);
    }
    return at;
}

/* Writes the value again, in its shortest form. Returns its end. */
static const unsigned char *compare(struct walk *w, const unsigned char *at, const msgpack_object *o, unsigned depth)
{
    const unsigned char *end = codec_skip(at);
    struct codec_item item;

    codec_read(at, &item);
    w->values++;
    FUZZ_CHECK(codec_type_of(at) == item.type || (item.type == CODEC_UINT && codec_type_of(at) == CODEC_NEGATIVE));
    switch (o->type) {
    case MSGPACK_OBJECT_NIL:
        FUZZ_CHECK(item.type == CODEC_NIL);
        codec_write_nil(&w->to);
        break;
    case MSGPACK_OBJECT_BOOLEAN:
        FUZZ_CHECK(item.type == CODEC_BOOL && item.b == o->via.boolean);
        codec_write_bool(&w->to, item.b);
        break;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        FUZZ_CHECK(item.type == CODEC_UINT && item.u == o->via.u64);
        codec_write_uint64(&w->to, item.u);
        break;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        FUZZ_CHECK(item.type == CODEC_NEGATIVE && item.i == o->via.i64);
        codec_write_int64(&w->to, item.i);
        break;
    case MSGPACK_OBJECT_FLOAT32:
        FUZZ_CHECK(item.type == CODEC_FLOAT && !memcmp(&item.f, &o->via.f64, sizeof(item.f)));
        codec_write_float(&w->to, (float)item.f);
        break;
    case MSGPACK_OBJECT_FLOAT64:
        FUZZ_CHECK(item.type == CODEC_FLOAT && !memcmp(&item.f, &o->via.f64, sizeof(item.f)));
        codec_write_double(&w->to, item.f);
        break;
    case MSGPACK_OBJECT_STR:
        FUZZ_CHECK(item.type == CODEC_STR && item.count == o->via.str.size);
        FUZZ_CHECK(!item.count || item.text == o->via.str.ptr); /* msgpack-c keeps no place of an empty text */
        codec_write_text(&w->to, item.text, item.count);
        break;
    case MSGPACK_OBJECT_BIN:
        FUZZ_CHECK(item.type == CODEC_BIN && item.count == o->via.bin.size);
        FUZZ_CHECK(!item.count || item.text == o->via.bin.ptr);
        codec_write_binary(&w->to, item.text, item.count);
        break;
    default:
        FUZZ_CHECK(compare_children(w, &item, o, depth + 1) == end);
        return end;
    }
    FUZZ_CHECK(item.next == end);
    return end;
}

static void check_value(const unsigned char *data, const struct scan *s, const msgpack_object *o)
{
    static unsigned char ours[LIMIT];
    struct walk w = {.to = ours};
    msgpack_sbuffer theirs;
    msgpack_packer p;

    FUZZ_CHECK(compare(&w, data, o, 0) == data + s->position);
    FUZZ_CHECK(w.values == s->values && w.deepest <= SCAN_MAX_DEPTH);
    msgpack_sbuffer_init(&theirs);
    msgpack_packer_init(&p, &theirs, msgpack_sbuffer_write);
    FUZZ_CHECK(msgpack_pack_object(&p, *o) == 0);
    FUZZ_CHECK(theirs.size == (size_t)(w.to - ours) && !memcmp(theirs.data, ours, theirs.size));
    msgpack_sbuffer_destroy(&theirs);
}

static void check_nfds(const unsigned char *data, size_t length, const msgpack_object *o)
{
    int expected = 0;

    if (o->type != MSGPACK_OBJECT_MAP)
        return;
    for (uint32_t i = o->via.map.size; i-- > 0;) {
        const msgpack_object *key = &o->via.map.ptr[i].key, *value = &o->via.map.ptr[i].val;

        if (key->type == MSGPACK_OBJECT_STR && key->via.str.size == 4 && !memcmp(key->via.str.ptr, "nfds", 4))
            expected =
                value->type == MSGPACK_OBJECT_POSITIVE_INTEGER && value->via.u64 <= MAX_FDS ? (int)value->via.u64 : -1;
    }
    FUZZ_CHECK(codec_nfds(data, data + length, MAX_FDS) == expected);
}

/* Every str of the message is looked for among some keys. */
static void check_find(const unsigned char *at, const struct codec_item *item)
{
    struct codec_item key;

    static const struct row {
        struct codec_key key;
        int more;
    } rows[] = {{{"in", 2}, 0}, {{"op", 2}, 0}, {{"out", 3}, 0}, {{"", 0}, 0}, {{"shape", 5}, 0}, {{"o", 1}, 0}};
    enum { ROWS = sizeof(rows) / sizeof(rows[0]) };
    int expected = -1;

    for (int i = 0; i < ROWS; i++)
        if (strlen(rows[i].key.key) == item->count && !memcmp(rows[i].key.key, item->text, item->count))
            expected = i;
    for (unsigned from = 0; from <= ROWS; from++)
        FUZZ_CHECK(codec_find(at, rows, sizeof(rows[0]), ROWS, from, &key) == expected && key.text == item->text);
}

static void check_texts(const unsigned char *at, const unsigned char *end)
{
    struct codec_item item;

    for (; at < end; at = item.next) {
        codec_read(at, &item);
        if (item.type == CODEC_STR)
            check_find(at, &item);
    }
}

/* The value that the scan refused is one that it must refuse. */
static void check_refused(enum scan_result r, const struct scan *s, const uint8_t *data)
{
    unsigned char type;

    if (r != SCAN_INVALID && r != SCAN_TOO_DEEP)
        return; /* there may be no byte where it stopped */
    type = data[s->position];
    if (r == SCAN_INVALID)
        FUZZ_CHECK(type == 0xc1 || (type >= 0xc7 && type <= 0xc9) || (type >= 0xd4 && type <= 0xd8));
    if (r == SCAN_TOO_DEEP)
        FUZZ_CHECK(s->depth == SCAN_MAX_DEPTH && ((type >= 0x80 && type < 0xa0) || type >= 0xdc));
}

static void check_in_steps(const uint8_t *data, size_t size, enum scan_result whole, size_t end)
{
    enum scan_result r = SCAN_MORE;
    struct scan s;

    scan_reset(&s);
    for (size_t n = 1; n <= size && r == SCAN_MORE; n++) {
        r = scan_value(&s, data, n, LIMIT);
        FUZZ_CHECK(s.position <= n);
    }
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    msgpack_object o;
    msgpack_zone zone;
    msgpack_unpack_return taken;
    enum scan_result r;
    size_t offset = 0;
    struct scan s;

    if (!size || size > 2 * LIMIT)
        return 0;
    scan_reset(&s);
    r = scan_value(&s, data, size, LIMIT);
    FUZZ_CHECK(s.position <= size && s.depth <= SCAN_MAX_DEPTH && (r != SCAN_COMPLETE || s.position <= LIMIT));
    for (unsigned i = 0; r == SCAN_MORE && i < s.depth; i++)
        FUZZ_CHECK(s.remaining[i] <= LIMIT); /* what is announced fits */
    check_in_steps(data, size, r, s.position);
    check_in_parts(data, size, r, &s, 1);
    check_in_parts(data, size, r, &s, 7);
    /* msgpack-c makes room for as many elements as are announced, so it gets nothing of a refused value, which may
     * announce 2^32: it must find nothing wrong with all that comes before. */
    if (r != SCAN_COMPLETE)
        size = s.position;
    FUZZ_CHECK(msgpack_zone_init(&zone, 8192));
    taken = msgpack_unpack((const char *)data, size, &offset, &zone, &o);
    if (r == SCAN_COMPLETE) {
        FUZZ_CHECK((taken == MSGPACK_UNPACK_SUCCESS || taken == MSGPACK_UNPACK_EXTRA_BYTES) && offset == s.position);
        check_value(data, &s, &o);
        check_nfds(data, s.position, &o);
        check_texts(data, data + s.position);
    } else {
        FUZZ_CHECK(taken == MSGPACK_UNPACK_CONTINUE || !size);
        check_refused(r, &s, data);
    }
    msgpack_zone_destroy(&zone);
    return 0;
}

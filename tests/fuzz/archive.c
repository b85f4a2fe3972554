/* What comes from files: an archive to be imported, and a file of the cache on disk.
 *
 * The first byte says what the rest is: 0 a whole archive, 1 a whole file of the cache, 2 the payload of an archive's
 * only module, 3 the payload of a file. For the last two the target adds lengths and hashes, which no input would ever
 * hit.
 *
 * Beyond memory errors it checks: what is taken says the same when it is written again, and whatever is refused says
 * why. */
#include <sodium.h>
#include <string.h>

#include "compile/archive.h"
#include "compile/cache.h"
#include "tests/fuzz/fuzz.h"

enum { LIMIT = 1 << 16 };

static const unsigned char secret[CACHE_SECRET_BYTES] = "the secret of a fuzz target";

struct bytes {
    const uint8_t *data;
    size_t size;
};

static ssize_t read_bytes(void *context, void *into, size_t size, uint64_t at)
{
    const struct bytes *b = context;
    size_t n = at < b->size ? b->size - at : 0;

    n = n < size ? n : size;
    n = n > 1000 ? 1000 : n; /* a file may give less than was asked for */
    memcpy(into, b->data + at, n);
    return (ssize_t)n;
}

/* Returns whether its bytes are those. */
static int says(const struct compiled *compiled, const uint8_t *payload, size_t size)
{
    struct buffer again;
    int same;

    buffer_init(&again, CACHE_PAYLOAD_MAX);
    compiled_serialize(compiled, &again);
    same = !again.failed && buffer_length(&again) == size && !memcmp(again.data + again.start, payload, size);
    buffer_free(&again);
    return same;
}

/* The number of modules, or -1. */
static int read_archive(const uint8_t *data, size_t size)
{
    struct bytes bytes = {data, size};
    struct archive_reader r;
    struct compiled *compiled;
    struct error e = {0};
    int n = 0, more = archive_open(&r, read_bytes, &bytes, size, &e);

    while (!more && (more = archive_next(&r, &compiled, &e)) == 1) {
        FUZZ_CHECK(says(compiled, r.record + 8, cache_get64(r.record)));
        compiled_unref(compiled);
        n++;
        more = 0;
    }
    archive_reader_free(&r);
    if (more >= 0)
        return n;
    FUZZ_CHECK(e.code != ERROR_NONE && e.message[0]);
    return -1;
}

static int read_file(const uint8_t *data, size_t size, const unsigned char *key)
{
    struct compiled *compiled;
    struct error e = {0};

    if (cache_file_open(data, size, secret, key, &compiled, &e) < 0) {
        FUZZ_CHECK(e.code != ERROR_NONE && e.message[0]);
        return -1;
    }
    FUZZ_CHECK(says(compiled, data + CACHE_HEADER_BYTES, size - CACHE_HEADER_BYTES - CACHE_MAC_BYTES));
    compiled_unref(compiled);
    return 0;
}

/* As archive_end() and archive_add() write it. */
static size_t make_archive(unsigned char *into, const uint8_t *payload, size_t size)
{
    size_t total = ARCHIVE_HEADER_BYTES + 8 + size + 32;

    memset(into, 0, ARCHIVE_HEADER_BYTES);
    memcpy(into, "KOPS archive 1", 14);
    cache_put64(into + 16, 1);
    cache_put64(into + 24, total);
    cache_put64(into + ARCHIVE_HEADER_BYTES, size);
    memcpy(into + ARCHIVE_HEADER_BYTES + 8, payload, size);
    crypto_generichash(into + ARCHIVE_HEADER_BYTES + 8 + size, 32, into + ARCHIVE_HEADER_BYTES, 8 + size, NULL, 0);
    return total;
}

static size_t make_file(unsigned char *into, const uint8_t *payload, size_t size)
{
    memcpy(into, "KOPSCOD1", 8);
    cache_put64(into + 8, size);
    memcpy(into + CACHE_HEADER_BYTES, payload, size);
    crypto_generichash(into + CACHE_HEADER_BYTES + size, CACHE_MAC_BYTES, into, CACHE_HEADER_BYTES + size, secret,
                       sizeof(secret));
    return CACHE_HEADER_BYTES + size + CACHE_MAC_BYTES;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char whole[LIMIT + 256];
    static const unsigned char no_key[KEY_BYTES];
    const unsigned char *key = no_key;
    struct compiled *compiled;
    struct error e;

    if (size < 1 || size > LIMIT)
        return 0;
    switch (*data++) {
    case 0:
        read_archive(data, size - 1);
        break;
    case 1:
        FUZZ_CHECK(read_file(data, size - 1, no_key) < 0); /* nobody guesses a keyed hash */
        break;
    case 2:
        if (read_archive(whole, make_archive(whole, data, size - 1)) == 1) {
            FUZZ_CHECK(compiled_parse(data, size - 1, &compiled, &e) == 0);
            compiled_unref(compiled);
        }
        break;
    case 3:
        if (size > 8 + KEY_BYTES)
            key = data + 8; /* where a payload has it, behind its magic number */
        FUZZ_CHECK((read_file(whole, make_file(whole, data, size - 1), key) == 0) ==
                   (compiled_parse(data, size - 1, &compiled, &e) == 0 && !compiled_unref(compiled)));
        break;
    default:
        break;
    }
    return 0;
}

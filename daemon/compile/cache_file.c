#include "compile/cache_file.h"

#include <sodium.h>
#include <string.h>

enum { MAGIC_BYTES = 8 };

/* One for each way in which a module has come here. */
static const unsigned char magics[COMPILED_FROM_COUNT][MAGIC_BYTES] = {
    [COMPILED_HERE] = {'K', 'O', 'P', 'S', 'C', 'O', 'D', '1'},
    [COMPILED_IMPORTED] = {'K', 'O', 'P', 'S', 'C', 'O', 'I', '1'},
    [COMPILED_REMOTE] = {'K', 'O', 'P', 'S', 'C', 'O', 'R', '1'},
};

void cache_put64(unsigned char into[8], uint64_t value)
{
    for (unsigned i = 0; i < 8; i++)
        into[i] = (unsigned char)(value >> (8 * i));
}

uint64_t cache_get64(const unsigned char from[8])
{
    uint64_t value = 0;

    for (unsigned i = 0; i < 8; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static void make_mac(const unsigned char *bytes, size_t size, const unsigned char *secret, unsigned char *ret_mac)
{
    crypto_generichash(ret_mac, CACHE_MAC_BYTES, bytes, size, secret, CACHE_SECRET_BYTES);
}

int cache_file_make(const struct compiled *compiled, const unsigned char secret[CACHE_SECRET_BYTES],
                    struct buffer *into)
{
    unsigned char header[CACHE_HEADER_BYTES] = {0}, mac[CACHE_MAC_BYTES];

    memcpy(header, magics[compiled->from], MAGIC_BYTES);
    buffer_append(into, header, sizeof(header));
    compiled_serialize(compiled, into);
    if (into->failed)
        return -1;
    cache_put64(into->data + into->start + MAGIC_BYTES, buffer_length(into) - sizeof(header));
    make_mac(into->data + into->start, buffer_length(into), secret, mac);
    buffer_append(into, mac, sizeof(mac));
    return into->failed ? -1 : 0;
}

/* COMPILED_FROM_COUNT: it is none of them. */
static enum compiled_from find_magic(const unsigned char *at)
{
    enum compiled_from from = COMPILED_HERE;

    while (from < COMPILED_FROM_COUNT && memcmp(at, magics[from], MAGIC_BYTES) != 0)
        from++;
    return from;
}

int cache_file_open(const void *bytes, size_t size, const unsigned char secret[CACHE_SECRET_BYTES],
                    const unsigned char key[KEY_BYTES], struct compiled **ret_compiled, struct error *e)
{
    const unsigned char *at = bytes;
    unsigned char mac[CACHE_MAC_BYTES];
    struct compiled *compiled;
    enum compiled_from from;

    if (size < CACHE_HEADER_BYTES + CACHE_MAC_BYTES || size > CACHE_FILE_MAX)
        return error_set(e, ERROR_INVALID_ARGUMENT, "its size is wrong");
    from = find_magic(at);
    if (from == COMPILED_FROM_COUNT)
        return error_set(e, ERROR_INVALID_ARGUMENT, "it is of another kind or version");
    if (cache_get64(at + MAGIC_BYTES) != size - CACHE_HEADER_BYTES - CACHE_MAC_BYTES)
        return error_set(e, ERROR_INVALID_ARGUMENT, "it is cut off");
    make_mac(at, size - CACHE_MAC_BYTES, secret, mac);
    if (sodium_memcmp(mac, at + size - CACHE_MAC_BYTES, sizeof(mac)) != 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "it was changed, or made by somebody else");
    if (compiled_parse(at + CACHE_HEADER_BYTES, size - CACHE_HEADER_BYTES - CACHE_MAC_BYTES, &compiled, e) < 0)
        return -1;
    if (memcmp(compiled->key, key, KEY_BYTES) != 0) {
        compiled_unref(compiled);
        return error_set(e, ERROR_INVALID_ARGUMENT, "it has another module's name");
    }
    compiled->from = from;
    *ret_compiled = compiled;
    return 0;
}

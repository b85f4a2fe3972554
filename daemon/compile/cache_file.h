/* The form of a file in the cache on disk: a magic number, which also says how the module came here, the length of the
 * rest, compiled_serialize()'s bytes, and a keyed BLAKE2b-256 of all before it. The secret is this directory's own (see
 * cache_secret.h), so only its readers can make files that count as binaries.
 *
 * Thread: any; nothing here keeps state. */
#ifndef KOPS_COMPILE_CACHE_FILE_H
#define KOPS_COMPILE_CACHE_FILE_H

#include "compile/compiled.h"
#include "compile/key.h"
#include "util/buffer.h"
#include "util/error.h"

enum {
    CACHE_SECRET_BYTES = 32,
    CACHE_MAC_BYTES = 32,
    CACHE_HEADER_BYTES = 16,
    CACHE_PAYLOAD_MAX = COMPILED_MAX_IMAGE + (2 << 20), /* a binary, a log, and 64 entries with all their parameters */
    CACHE_FILE_MAX = CACHE_HEADER_BYTES + CACHE_PAYLOAD_MAX + CACHE_MAC_BYTES,
};

/* Appends the whole file to `into`, whose maximum is CACHE_FILE_MAX or more; -1 when it does not fit in memory. */
int cache_file_make(const struct compiled *compiled, const unsigned char secret[CACHE_SECRET_BYTES],
                    struct buffer *into);

/* Bytes from anywhere: refuses files that were not made with this secret for this key. The content is read only when
 * its hash is right. */
int cache_file_open(const void *bytes, size_t size, const unsigned char secret[CACHE_SECRET_BYTES],
                    const unsigned char key[KEY_BYTES], struct compiled **ret_compiled, struct error *e);

/* Little-endian, for this form and that of archives. */
void cache_put64(unsigned char into[8], uint64_t value);
uint64_t cache_get64(const unsigned char from[8]);

#endif

/* A module as caches of several machines hold it: a header, compiled_serialize()'s bytes, and an Ed25519 signature of
 * all before it. So what is signed is also the key that the module was asked for by (source, options, architecture, the
 * compiler's identity), and a server that hands out a module under another name, an older form, half of one or its own
 * is refused, whatever its transport.
 *
 *     16  "KOPS signed 1"       8  when it was signed, seconds since 1970
 *     32  the signer's public key
 *     32  the key               8  the payload's length
 *      …  the payload          64  the signature
 *
 * Beside it the files of the administrator's that this needs: signing keys, and the server's password.
 *
 * Thread: any; nothing here keeps state. Functions that take a path block. */
#ifndef KOPS_COMPILE_SIGNED_H
#define KOPS_COMPILE_SIGNED_H

#include <stddef.h>

#include "compile/cache.h"
#include "compile/compiled.h"
#include "util/buffer.h"
#include "util/error.h"

/* ---- files that hold a secret ---- */

enum { SECRET_FILE_SIZE = 4096 /* a text with its ending zero */ };

/* Reads a file whose first line is "bearer TOKEN" or "basic USER:PASSWORD", as the value of HTTP's header
 * Authorization. Refuses a file that others than its owner (this user, or root) can read or write. */
int secret_file_authorization(const char *path, char into[SECRET_FILE_SIZE], struct error *e);

/* ---- keys: Ed25519 of libsodium. A public key is a word of the settings, "ed25519:" and 64 hexadecimal digits; a
 * private key is the only word, with "ed25519-private:", of a file that only its owner can read ---- */

enum {
    SIGNING_PUBLIC_BYTES = 32,
    SIGNING_SECRET_BYTES = 64,
    SIGNING_BYTES = 64,            /* a signature */
    SIGNING_WORD_SIZE = 8 + 64 + 1 /* a public key with the ending zero */
};

struct signing_key {
    unsigned char public[SIGNING_PUBLIC_BYTES], secret[SIGNING_SECRET_BYTES];
};

int signing_public_parse(const char *word, unsigned char ret_public[SIGNING_PUBLIC_BYTES], struct error *e);
void signing_public_print(const unsigned char public[SIGNING_PUBLIC_BYTES], char ret_word[SIGNING_WORD_SIZE]);

/* Reads a private key, by the same rules. */
int signing_key_read(const char *path, struct signing_key *ret_key, struct error *e);

/* Makes a key and its file, mode 0600, which must not be there yet. */
int signing_key_make(const char *path, struct signing_key *ret_key, struct error *e);

void signing_key_forget(struct signing_key *key);

/* ---- modules ---- */

enum {
    SIGNED_HEADER_BYTES = 16 + SIGNING_PUBLIC_BYTES + KEY_BYTES + 8 + 8,
    SIGNED_MAX = SIGNED_HEADER_BYTES + CACHE_PAYLOAD_MAX + SIGNING_BYTES,
    SIGNED_MAX_TRUSTED = 32,
};

/* Signers whose modules are taken. */
struct signed_trust {
    unsigned n;
    unsigned char keys[SIGNED_MAX_TRUSTED][SIGNING_PUBLIC_BYTES];
    uint64_t max_age_s; /* a signature's; 0: any */
};

/* Appends the signed module to `into`, whose maximum is SIGNED_MAX or more; -1 when it does not fit in memory. `now_s`:
 * seconds since 1970. */
int signed_make(const struct compiled *compiled, const struct signing_key *key, uint64_t now_s, struct buffer *into);

/* Reads bytes from anywhere. No byte of the payload is read before its signature is right. */
int signed_open(const void *bytes, size_t size, const struct signed_trust *trust, const unsigned char key[KEY_BYTES],
                uint64_t now_s, struct compiled **ret_compiled, struct error *e);

#endif

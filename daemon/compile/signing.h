/* Keys that compiled code is signed with, for caches that several machines share: Ed25519 of libsodium, which the
 * daemon has for its hashes anyway.
 *
 * A public key is a word of the settings, "ed25519:" and 64 hexadecimal digits. A private key is the only such word,
 * with "ed25519-private:", of a file that only its owner can read.
 *
 * Thread: any; functions that read or write a file block. */
#ifndef KOPS_COMPILE_SIGNING_H
#define KOPS_COMPILE_SIGNING_H

#include "util/error.h"

enum {
    SIGNING_PUBLIC_BYTES = 32,
    SIGNING_SECRET_BYTES = 64,
    SIGNING_BYTES = 64,            /* of a signature */
    SIGNING_WORD_SIZE = 8 + 64 + 1 /* of a public key, with the ending zero */
};

struct signing_key {
    unsigned char public[SIGNING_PUBLIC_BYTES], secret[SIGNING_SECRET_BYTES];
};

/* A public key from its word. */
int signing_public_parse(const char *word, unsigned char ret_public[SIGNING_PUBLIC_BYTES], struct error *e);
void signing_public_print(const unsigned char public[SIGNING_PUBLIC_BYTES], char ret_word[SIGNING_WORD_SIZE]);

/* Reads a private key, by the rules of secret_file.h. */
int signing_key_read(const char *path, struct signing_key *ret_key, struct error *e);

/* Makes a key and its file, mode 0600, which must not be there yet. */
int signing_key_make(const char *path, struct signing_key *ret_key, struct error *e);

void signing_key_forget(struct signing_key *key);

#endif

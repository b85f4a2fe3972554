/* The key of a binary: BLAKE2b-256 over all inputs of its compile.
 *
 * Thread: any; nothing here keeps state. */
#ifndef KOPS_COMPILE_KEY_H
#define KOPS_COMPILE_KEY_H

#include <stdbool.h>

#include "compile/compiler.h"

enum { KEY_BYTES = COMPILED_KEY_BYTES, KEY_HEX = 2 * KEY_BYTES };

/* `input` has its options normalised; `identity` is the compiler's. The order of files changes nothing; that of entries
 * does, because the result has them in that order. */
void key_make(const struct compile_input *input, const char *identity, unsigned char ret_key[KEY_BYTES]);

/* Lower case, with an ending zero. */
void key_to_hex(const unsigned char key[KEY_BYTES], char ret_hex[KEY_HEX + 1]);

/* Exactly KEY_HEX digits in lower case and nothing more. */
bool key_from_hex(const char *hex, unsigned char ret_key[KEY_BYTES]);

#endif

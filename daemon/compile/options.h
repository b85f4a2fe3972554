/* The input of a compile: the options, names and texts that a client may give the compiler, one spelling for each, and
 * the key of the result.
 *
 * Only listed options are allowed: others could name an output file, another file to read or another architecture.
 * Thread: any; nothing here keeps state. */
#ifndef KOPS_COMPILE_OPTIONS_H
#define KOPS_COMPILE_OPTIONS_H

#include <stdint.h>

#include "compile/compiler.h"
#include "proto/generated/kernels.h"
#include "util/error.h"

enum {
    OPTIONS_MAX = KERNELS_OPTIONS_MAX,
    OPTIONS_MAX_LENGTH = KERNELS_OPTION_TEXT_MAX,
    OPTIONS_MAX_FILES = KERNELS_FILES_MAX,
    OPTIONS_MAX_NAME = 255, /* bytes of a file's name */
    OPTIONS_MAX_ENTRY = 1024,
};

/* Options for NVRTC: each once, always in the same order and spelling. */
struct options {
    unsigned n;
    char *texts[OPTIONS_MAX]; /* owned */
};

/* `arch` is the architecture of the compile: an option that asks for another one is an error. nvcc's options without a
 * meaning for device code are left out. `include`: the toolkit's headers, parts of which -I may name (NULL: none). Of
 * an option that is given twice the last one counts. Errors name `options[i]`. */
int options_normalise(const char *const *options, unsigned n, const char *arch, const char *include,
                      struct options *ret_options, struct error *e);
void options_free(struct options *options);

/* Checks all of an input but its options: names, sizes (`source_bytes` for the source and its files together), the
 * architecture's form. */
int options_check_input(const struct compile_input *input, uint64_t source_bytes, struct error *e);

/* Makes the key of a binary: BLAKE2b-256 over all inputs of its compile. `input` has its options normalised; `identity`
 * is the compiler's. The order of files changes nothing; the order of entries does, because the result has them in that
 * order. */
void key_make(const struct compile_input *input, const char *identity, unsigned char ret_key[KEY_BYTES]);

#endif

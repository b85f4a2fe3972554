/* The options, names and texts that a client may give the compiler, and one spelling for each.
 *
 * An option that names an output file, another file to read or another architecture is refused: only listed options are
 * allowed, see options_nvcc.h for nvcc's own. Thread: any; nothing here keeps state. */
#ifndef KOPS_COMPILE_OPTIONS_H
#define KOPS_COMPILE_OPTIONS_H

#include <stdbool.h>
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

/* Options as they are handed to the compiler: each once, the same ones always in the same order and spelling. */
struct options {
    unsigned n;
    char *texts[OPTIONS_MAX]; /* owned */
};

/* `arch` is what will be compiled for: an option that asks for another is an error. Options of nvcc's that have no
 * meaning for device code are left out. `include` is the directory of the toolkit's headers, which -I may name parts of
 * (NULL: none). Of an option that is given twice the last one counts. Faults are named `options[i]`. */
int options_normalise(const char *const *options, unsigned n, const char *arch, const char *include,
                      struct options *ret_options, struct error *e);
void options_free(struct options *options);

/* Checks all of an input but its options: names, sizes (`source_bytes` for the source and its files together), that the
 * architecture is one. */
int options_check_input(const struct compile_input *input, uint64_t source_bytes, struct error *e);

/* Whether the bytes are valid UTF-8 without control characters (a tab is none here). */
bool options_text_valid(const char *text, size_t length);

#endif

/* Reads the kernels of a cubin: an ELF file for a GPU, with the properties of each kernel in sections named .nv.info.
 * Bytes from anywhere: every field is checked before use.
 *
 * Owns nothing: the caller's bytes outlive the struct. Thread: any, one at a time. */
#ifndef KOPS_COMPILE_CUBIN_H
#define KOPS_COMPILE_CUBIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compile/compiled.h"
#include "util/error.h"

struct cubin_section {
    const char *name; /* ends within the file */
    uint32_t type, link, info;
    const unsigned char *bytes; /* NULL for a section without content in the file */
    uint64_t size;
};

struct cubin {
    const unsigned char *bytes;
    size_t size;
    unsigned n_sections, names; /* `names`: the section with the names of sections */
    uint64_t sections_at;       /* offset of their table */
    struct cubin_section symbols, symbol_names, info;
    unsigned sm; /* 90 */
};

int cubin_open(struct cubin *c, const void *bytes, size_t size, struct error *e);

/* The names of all kernels, one a call: start with *at = 0; NULL after the last. */
const char *cubin_next_kernel(const struct cubin *c, uint32_t *at);

/* Fills in all numbers of `entry`, whose `lowered` names the kernel; leaves its names alone. */
int cubin_describe(const struct cubin *c, struct compiled_entry *entry, struct error *e);

#endif

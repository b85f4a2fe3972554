/* Options of nvcc for which the compiler of device code has no word: those of the host's compiler and of the linker are
 * dropped, as are those that ask for what is done anyhow. Thread: any. */
#ifndef KOPS_COMPILE_OPTIONS_NVCC_H
#define KOPS_COMPILE_OPTIONS_NVCC_H

#include <stdbool.h>

enum { OPTIONS_NVCC_ASSEMBLER = 4 /* kinds of options for the assembler */ };

struct options_nvcc {
    const char *assembler[OPTIONS_NVCC_ASSEMBLER]; /* constants: each kind's, NULL where there is none */
    bool matches;                                  /* one of the architectures is the one that is compiled for */
    const char *other;                             /* an architecture that is not; borrowed */
    unsigned other_length, other_index;            /* and the option that names it */
};

/* Reads texts[*i], with its value, which may be the next one; *i is then the last one read. `arch`: what is compiled
 * for. Returns 1; 0: it is none of these; -1: it is one of these that is refused, *ret_why says why. */
int options_nvcc_take(struct options_nvcc *o, const char *const *texts, unsigned n, unsigned *i, const char *arch,
                      const char **ret_why);

#endif

/* Blanks the host code of CUDA sources, for a compiler that knows only device code.
 *
 * A .cu file of nvcc's kind holds kernels together with host functions, main(), and variables of the host. This keeps
 * functions, templates and variables that are marked for the device (`__global__`, `__device__`, …, or a macro that
 * stands for one of these), constexpr and const, types, preprocessor directives. Code that nvcc would compile for the
 * host alone is replaced by spaces, so lines keep their numbers. It works on tokens: comments, literals, conditionals
 * and scopes are understood, macros are not expanded and names not resolved. The daemon blanks for its compiler, the
 * Python package for the interpreter's. Pure functions; any thread.
 *
 * A declaration that is kept may need the C++ library of the host all the same, such as `using std::cout;`. Where a
 * compiler found a fault in it, and it is not marked for the device, it becomes blank, too. A class with a faulty base
 * or variable goes as a whole, since its layout would be another one; a class with code for the device stays. */
#ifndef KOPS_SOURCE_HOSTCODE_H
#define KOPS_SOURCE_HOSTCODE_H

#include <stdbool.h>
#include <stddef.h>

struct hostcode_text {
    const char *text; /* borrowed */
    size_t length;
    const unsigned char *faults; /* NULL, or for each byte whether a compiler found a fault in its line */
    char *blanked;               /* set on success: `length` bytes and a NUL; the caller frees it */
    bool changed;
};

/* All texts of one program: macros that one defines are known in the others. Returns 0, or -1 without memory. */
int hostcode_blank(struct hostcode_text *texts, unsigned n);

#endif

/* Headers of the C and C++ libraries and of CUDA's runtime that sources include but a compiler for device code does not
 * have: just enough of each for kernels. Constant. */
#ifndef KOPS_COMPILE_HEADERS_H
#define KOPS_COMPILE_HEADERS_H

#include "compile/compiler.h"

/* The last `ret_n_fallback` ones are for toolkits that have no such file. */
const struct compile_file *headers_builtin(unsigned *ret_n, unsigned *ret_n_fallback);

#endif

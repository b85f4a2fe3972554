/* Headers of the C and C++ libraries and of CUDA's runtime that sources include but a compiler for device code does not
 * have: just enough of each for kernels. Constant. */
#ifndef KOPS_COMPILE_HEADERS_H
#define KOPS_COMPILE_HEADERS_H

#include "compile/compiler.h"

/* Names with blanks between them. Empty: included by host code, of no use to a kernel. */
extern const char headers_empty[];

/* Of libraries, with types that a kernel may use: empty only where the toolkit has none. */
extern const char headers_fallback[];

/* Of the C++ library, whose parts for kernels the toolkit has as cuda/std. */
extern const char headers_of_toolkit[];

/* The last `ret_n_fallback` ones are for toolkits that have no such file. */
const struct compile_file *headers_builtin(unsigned *ret_n, unsigned *ret_n_fallback);

#endif

/* A CUDA source as plain C++ for a compiler of the host, which runs the functions that launch kernels.
 *
 * A kernel's body becomes a call that records its arguments and the name of its instantiation; functions for the device
 * alone become blank; `k<B><<<grid, block>>>(x)` becomes `k<B>(x), ::kops::kops_launch(grid, block)`. Everything else
 * is the host compiler's own work: overloads, deduction, conversions, default arguments. Headers of the Python package
 * (client_py/kops/extension/include) define what the text calls, and the words of CUDA as nothing.
 *
 * Lines keep their numbers. Macros are not expanded; their texts are rewritten as the source is. Directives inside of a
 * body that goes stay. Time and memory are bounded by the text's length. Pure functions; any thread. */
#ifndef KOPS_SOURCE_HOSTCXX_H
#define KOPS_SOURCE_HOSTCXX_H

#include <stddef.h>

/* Returns the text that was made, with a NUL, which the caller frees; NULL without memory. */
char *hostcxx_of(const char *text, size_t length, size_t *ret_length);

#endif

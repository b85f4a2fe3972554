/* The headers of a binary of users' kernels. The driver is not told the length of a binary and reads as far as its
 * headers say: it gets no binary whose headers point outside. */
#ifndef KOPS_CUDA_BINARY_H
#define KOPS_CUDA_BINARY_H

#include <stddef.h>

#include "util/error.h"

struct cuda_binary {
    char arch[16]; /* "sm_90a" */
};

/* Errors: invalid_argument when it is no cubin, or one that is cut off. */
int cuda_binary_read(const void *binary, size_t size, struct cuda_binary *ret_binary, struct error *e);

#endif

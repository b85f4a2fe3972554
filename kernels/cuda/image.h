/* What an image of code says of itself. The driver is not told how long an image is and reads on: it gets none whose
 * headers point outside. */
#ifndef KOPS_CUDA_IMAGE_H
#define KOPS_CUDA_IMAGE_H

#include <stddef.h>

#include "util/error.h"

struct cuda_image {
    char arch[16]; /* "sm_90a" */
};

/* Errors: invalid_argument when it is no cubin, or one that is cut off. */
int cuda_image_read(const void *image, size_t size, struct cuda_image *ret_image, struct error *e);

#endif

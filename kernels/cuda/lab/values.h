/* Elements of every dtype as C values, rounded as the kernels round: once, to nearest even. */
#ifndef KOPS_CUDA_LAB_VALUES_H
#define KOPS_CUDA_LAB_VALUES_H

#include <stddef.h>

#include "core/dtype.h"

double value_get(enum dtype dtype, const unsigned char *array, size_t i);

/* f64 is stored as it is, the others are first rounded to f32. */
void value_set(enum dtype dtype, unsigned char *array, size_t i, double value);

#endif

/* Elements of every dtype as C values, rounded as the kernels round: once, to nearest even. */
#ifndef KOPS_CUDA_LAB_VALUES_H
#define KOPS_CUDA_LAB_VALUES_H

#include <stddef.h>
#include <stdint.h>

#include "core/tensor.h"

/* An element's bits, in the low ones; integers are these. */
uint64_t value_bits(enum dtype dtype, const unsigned char *array, size_t i);
void value_set_bits(enum dtype dtype, unsigned char *array, size_t i, uint64_t bits);

/* Of integers: the bits, as an unsigned number. */
double value_get(enum dtype dtype, const unsigned char *array, size_t i);

/* f64 is stored as it is, the others are first rounded to f32. Not for f8. */
void value_set(enum dtype dtype, unsigned char *array, size_t i, double value);

#endif

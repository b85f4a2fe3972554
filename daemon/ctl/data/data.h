/* Element values of every dtype as doubles, and random ones. */
#ifndef KOPS_CTL_DATA_H
#define KOPS_CTL_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kops/kops.h>

/* Fills floats with numbers of magnitude 2^-6 to 1, all bits of the mantissa and the sign random; integers with 0
 * to 99. */
void data_fill(void *data, size_t count, enum kops_dtype dtype, uint64_t seed);

double data_get(const void *data, size_t index, enum kops_dtype dtype);

/* Stores the nearest value that the dtype has; integers are cut to their range. */
void data_set(void *data, size_t index, enum kops_dtype dtype, double value);

/* Wraps a result around to the range of an integer type; floats stay as they are. */
double data_wrap(double value, enum kops_dtype dtype);
bool data_is_float(enum kops_dtype dtype);

/* Returns the next number of a splitmix64 sequence. */
uint64_t data_random(uint64_t *state);

#endif

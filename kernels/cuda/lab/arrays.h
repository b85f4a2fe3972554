/* Tensors of random layout, as a host copy and as the same bytes on a machine. */
#ifndef KOPS_CUDA_LAB_ARRAYS_H
#define KOPS_CUDA_LAB_ARRAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/tensor.h"
#include "machine.h"

struct lab_random {
    uint64_t state;
};

uint64_t lab_random(struct lab_random *r);
/* In [low, high]. */
int64_t lab_random_between(struct lab_random *r, int64_t low, int64_t high);

/* The layout of a tensor in its memory. */
enum lab_layout {
    LAYOUT_CONTIGUOUS,
    LAYOUT_OFFSET,     /* contiguous, but first element anywhere */
    LAYOUT_TRANSPOSED, /* contiguous in another order of the dimensions */
    LAYOUT_SLICE,      /* part of a larger tensor */
    LAYOUT_STRIDED,    /* every second or third element along the innermost dimension */
    LAYOUT_EXPANDED,   /* one dimension repeated: not for outputs */
    LAYOUT_COUNT
};

struct lab_array {
    struct tensor tensor;
    enum lab_layout layout;
    size_t size; /* bytes; for outputs with a margin behind the furthest element */
    unsigned char *host;
    uint64_t address;
};

/* Sets the array's tensor (dtype, rank and shape are given in it) and allocates the host copy. */
int lab_array_make(struct lab_array *a, struct lab_random *r, enum lab_layout layout, bool is_output);
/* Random finite values everywhere; `special` mixes in infinities, zeros of both signs and denormals. Integers: all bits
 * are random. */
void lab_array_fill(struct lab_array *a, struct lab_random *r, bool special);
void lab_array_free(struct lab_array *a);

/* Copies to new memory of the machine, or back into `into`. */
int lab_array_upload(struct lab_array *a, const struct lab_machine *m);
int lab_array_download(const struct lab_array *a, const struct lab_machine *m, unsigned char *into);
void lab_array_unload(struct lab_array *a, const struct lab_machine *m);

/* The address of the tensor's first element. */
static inline uint64_t lab_array_first(const struct lab_array *a)
{
    return a->address + a->tensor.offset;
}

/* Steps `index` (last dimension fastest) through the shape; false after the last. */
bool lab_next_index(const int64_t *shape, unsigned rank, int64_t *index);

/* The array element (from the start of the memory) that a tensor's index names. */
size_t lab_element(const struct tensor *t, const int64_t *index);

/* "[2, 3] / [3, 1] + 16" */
int lab_array_describe(const struct lab_array *a, char *into, size_t size);

#endif

/* What the tests of products share: a device whose cuBLASLt is fake_blaslt.c, three pieces of its memory, a stream. */
#ifndef KOPS_TEST_BLASLT_SUPPORT_H
#define KOPS_TEST_BLASLT_SUPPORT_H

#include "support.h"

/* What the library counts and was told last. */
extern unsigned *heuristics, *products, *wrong, *handles, *misaligned;
extern int *compute, *fast_sums;

extern struct backend_memory *memory[3]; /* of so many bytes each */
extern struct backend_stream *stream;

int open_with_library(uint64_t bytes);
int close_all(void **state); /* a group's teardown */
#define ALL_TESTS_WITH_LIBRARY(bytes)                                                                                  \
    static int open_library(void **state)                                                                              \
    {                                                                                                                  \
        return open_with_library(bytes);                                                                               \
    }                                                                                                                  \
    ALL_TESTS_WITH(open_library, close_all)

/* A matrix in memory[operand], with these strides of rows and columns. */
struct view strided(unsigned operand, uint64_t offset, int64_t rows, int64_t columns, int64_t row, int64_t column);

#endif

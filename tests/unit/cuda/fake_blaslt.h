/* What the stand-in for cuBLASLt keeps of its caller's descriptions, and its products. */
#ifndef KOPS_TESTS_FAKE_BLASLT_H
#define KOPS_TESTS_FAKE_BLASLT_H

#include <cublasLt.h>
#include <stdbool.h>
#include <stdint.h>

struct layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
    int32_t batch_count;
    int64_t batch_stride;
};

struct operation {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t transpose_a, transpose_b;
    uint32_t epilogue;
    const void *bias;
    const void *scales[2]; /* of A and B; of products of f8 alone */
    int32_t modes[2];
    int8_t fast_sums;
};

extern unsigned fake_blaslt_wrong; /* what a caller did wrong; read by the tests */

static inline bool fake_has_16_bits(cudaDataType type)
{
    return type == CUDA_R_16F || type == CUDA_R_16BF;
}

/* A number of an array of that type. */
double fake_load(const void *base, cudaDataType type, int64_t index);
/* Multiplies on the CPU, in f64. */
void fake_product(const struct operation *o, double alpha, double beta, const void *a, const struct layout *la,
                  const void *b, const struct layout *lb, void *out, const struct layout *l);

#endif

/* oneDNN's matrix products, found when the device opens and loaded at the first product that uses them. They run on the
 * calling thread alone: the pool's threads share a product, and no threads of another library's wait and poll.
 *
 * Only functions with the arguments of a BLAS are used. Their binary interface has been the same from oneDNN 1 to 3,
 * so that no headers are needed, and a library of any of those versions does. Thread: any. */
#ifndef KOPS_HOST_ONEDNN_H
#define KOPS_HOST_ONEDNN_H

#include <stdbool.h>
#include <stdint.h>

#include "library.h"

struct onednn {
    bool found;
    struct library library;

    /* Row-major; `trans` are 'N' or 'T'. Return 0, or an error before anything was written. */
    int (*sgemm)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                 const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
    /* The same of bf16 with sums in f32; NULL: this library has none. */
    int (*bf16gemm)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const uint16_t *a,
                    int64_t lda, const uint16_t *b, int64_t ldb, float beta, float *c, int64_t ldc);
    /* OpenMP's, for the calling thread. */
    void (*set_threads)(int threads);
    int (*threads)(void);
};

/* `setting`: "auto", NULL: the usual names; "none"; a path. */
void onednn_init(struct onednn *onednn, const char *setting);
void onednn_deinit(struct onednn *onednn);

/* Errors: unsupported. */
int onednn_load(struct onednn *onednn, struct error *e);

#endif

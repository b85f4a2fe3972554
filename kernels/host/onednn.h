/* oneDNN's matrix products, found when the device opens and loaded at the first product that uses them. They run on the
 * calling thread alone, as a BLAS's.
 *
 * Only functions with the arguments of a BLAS are used. Their binary interface has been the same from oneDNN 1 to 3,
 * so that no headers are needed, and a library of any of those versions does.
 *
 * oneDNN's generated code uses the stack pointer as a pointer into a buffer of its own for some of the time, so that a
 * signal's handler on the same stack would overwrite memory of others. It runs only on threads that take no signals but
 * faults, and that have another stack for these: never on the loop's. Thread: any other. */
#ifndef KOPS_HOST_ONEDNN_H
#define KOPS_HOST_ONEDNN_H

#include "gemm.h"
#include "library.h"

struct onednn {
    bool found;
    struct library library;

    /* Row-major; `trans` are 'N' or 'T'. Return 0, or an error before anything was written. */
    int (*sgemm)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                 const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
    /* Multiplies bf16, with sums in f32; NULL: this library has none. */
    int (*bf16gemm)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const uint16_t *a,
                    int64_t lda, const uint16_t *b, int64_t ldb, float beta, float *c, int64_t ldc);
    void (*set_threads)(int threads); /* OpenMP's, for the calling thread */
};

/* `setting`: "auto", NULL: the usual names; "none"; a path. */
void onednn_init(struct onednn *onednn, const char *setting);
void onednn_deinit(struct onednn *onednn);

/* Errors: unsupported. */
int onednn_load(struct onednn *onednn, struct error *e);

/* Multiplies f32 and bf16. The library has been loaded. */
struct gemm_way onednn_way(const struct onednn *onednn);

#endif

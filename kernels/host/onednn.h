/* oneDNN's matrix products: the library is found when the device opens and loaded at the first product that uses it.
 * Products run on the calling thread alone, as those of a BLAS.
 *
 * Only functions with a BLAS's arguments are used. Their binary interface is equal in oneDNN 1 to 3, so no headers are
 * needed, and any of these versions serves.
 *
 * oneDNN's generated code sometimes points the stack pointer at its own buffer, so that a signal handler on that stack
 * would overwrite other memory. So it runs only on threads that block all signals except faults, and that have a signal
 * stack for these. Thread: any except the loop's. */
#ifndef KOPS_HOST_ONEDNN_H
#define KOPS_HOST_ONEDNN_H

#include "gemm.h"
#include "library.h"

struct onednn {
    bool found;
    struct library library;

    /* Multiplies row-major f32; `trans` are 'N' or 'T'. Returns 0, or an error before anything was written. */
    int (*sgemm)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                 const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
    /* Multiplies bf16, with sums in f32; NULL: the library lacks it. */
    int (*bf16gemm)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const uint16_t *a,
                    int64_t lda, const uint16_t *b, int64_t ldb, float beta, float *c, int64_t ldc);
    void (*set_threads)(int threads); /* OpenMP's function, for the calling thread */
};

/* Finds the library, without loading it. `setting`: a path; "none"; "auto" or NULL: the usual names. */
void onednn_init(struct onednn *onednn, const char *setting);
void onednn_deinit(struct onednn *onednn);

/* Loads the library once. Errors: unsupported. */
int onednn_load(struct onednn *onednn, struct error *e);

/* Returns the way to multiply f32 and bf16. The library has been loaded. */
struct gemm_way onednn_way(const struct onednn *onednn);

#endif

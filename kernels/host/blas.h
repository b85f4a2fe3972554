/* A BLAS library, found when the device opens and loaded at the first product that uses it. Its calls run on the
 * calling thread alone: the pool's threads share a product, and no threads of the library poll. Thread: any. */
#ifndef KOPS_HOST_BLAS_H
#define KOPS_HOST_BLAS_H

#include "gemm.h"
#include "library.h"

struct blas {
    const char *name; /* "openblas", "blis", "mkl", "blas"; NULL: none was found */
    struct library library;

    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                  const float *b, int ldb, float beta, float *c, int ldc);
    void (*dgemm)(int order, int trans_a, int trans_b, int m, int n, int k, double alpha, const double *a, int lda,
                  const double *b, int ldb, double beta, double *c, int ldc);
    void (*sgemv)(int order, int trans, int m, int n, float alpha, const float *a, int lda, const float *x, int incx,
                  float beta, float *y, int incy);
    void (*dgemv)(int order, int trans, int m, int n, double alpha, const double *a, int lda, const double *x, int incx,
                  double beta, double *y, int incy);
    void (*set_threads)(int threads);           /* for the process: OpenBLAS, MKL */
    void (*set_threads_int64)(int64_t threads); /* for the process: BLIS */
    void (*set_openmp_threads)(int threads);    /* for the calling thread, where the library uses OpenMP */
};

/* Sets variables that OpenBLAS reads when it is loaded. Call before the process has other threads, which may read the
 * environment at any time. */
void blas_prepare_process(void);

/* Finds the library, without loading it. `setting`: a path; "none"; "auto" or NULL: the usual names. */
void blas_init(struct blas *blas, const char *setting);
void blas_deinit(struct blas *blas);

/* Loads the library once; later calls repeat the first outcome. Errors: unsupported. */
int blas_load(struct blas *blas, struct error *e);

/* Returns the way to multiply f32 and f64. The library has been loaded. */
struct gemm_way blas_way(const struct blas *blas);

#endif

/* A BLAS library, found when the device opens and loaded at the first product that uses it. Thread: any. */
#ifndef KOPS_HOST_BLAS_H
#define KOPS_HOST_BLAS_H

#include <stdbool.h>
#include <stdint.h>

#include "library.h"

enum { BLAS_ROW_MAJOR = 101, BLAS_NO_TRANS = 111, BLAS_TRANS = 112 };

struct blas {
    const char *name; /* "openblas", "blis", "mkl", "blas"; NULL: none was found */
    unsigned threads;
    struct library library;

    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                  const float *b, int ldb, float beta, float *c, int ldc);
    void (*dgemm)(int order, int trans_a, int trans_b, int m, int n, int k, double alpha, const double *a, int lda,
                  const double *b, int ldb, double beta, double *c, int ldc);
    void (*sgemv)(int order, int trans, int m, int n, float alpha, const float *a, int lda, const float *x, int incx,
                  float beta, float *y, int incy);
    void (*dgemv)(int order, int trans, int m, int n, double alpha, const double *a, int lda, const double *x, int incx,
                  double beta, double *y, int incy);
    void (*set_threads_int)(int threads);       /* OpenBLAS, MKL */
    void (*set_threads_int64)(int64_t threads); /* BLIS */
};

/* Looks for the library that `setting` names ("auto", NULL: the usual ones; "none"; a path) without loading it, and
 * prepares the environment for it. Called when no other thread reads the environment. */
void blas_init(struct blas *blas, const char *setting, unsigned threads);
void blas_deinit(struct blas *blas);

/* Loads it once; later calls repeat the first outcome. Errors: unsupported. */
int blas_load(struct blas *blas, struct error *e);
/* Whether that has succeeded, so that blas_load() returns at once. */
bool blas_is_loaded(const struct blas *blas);

/* Threads of each later product, process-wide; false: the library cannot be told. */
bool blas_set_threads(const struct blas *blas, unsigned threads);

#endif

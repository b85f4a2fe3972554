/* Third-party libraries that the host device may use, BLAS and oneDNN. Each is found when the device opens, and loaded
 * when first needed, since loading costs tens of milliseconds and megabytes, and stays loaded. Thread: any. */
#ifndef KOPS_HOST_LIBRARIES_H
#define KOPS_HOST_LIBRARIES_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "gemm.h"
#include "util/error.h"

struct library {
    const char *what;    /* kind for messages, such as "BLAS" */
    const char *setting; /* name of its setting, for messages */
    char path[PATH_MAX]; /* "": not found */

    pthread_mutex_t lock; /* guards the members below, until `ready` */
    atomic_bool ready;
    atomic_bool failed; /* loading has failed, or the library was given up */
    struct error why;   /* the reason of `failed` */
};

/* Whether library_load() has succeeded, so that it returns at once. */
bool library_is_loaded(const struct library *library);
/* Whether library_load() has failed, so that it always will. */
bool library_has_failed(const struct library *library);
/* Makes a loaded library count as failed. Threads that already use it may still call it. */
void library_give_up(struct library *library, const char *why);

/* A BLAS library, found when the device opens and loaded at the first product that uses it. Its calls run on the
 * calling thread alone: the pool's threads share a product, and no threads of the library poll. Thread: any. */

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

/* oneDNN's matrix products: the library is found when the device opens and loaded at the first product that uses it.
 * Products run on the calling thread alone, as those of a BLAS.
 *
 * Only functions with a BLAS's arguments are used. Their binary interface is equal in oneDNN 1 to 3, so no headers are
 * needed, and any of these versions serves.
 *
 * oneDNN's generated code sometimes points the stack pointer at its own buffer, so that a signal handler on that stack
 * would overwrite other memory. So it runs only on threads that block all signals except faults, and that have a signal
 * stack for these. Thread: any except the loop's. */

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

/* One gemm problem's descriptors and algorithm, and the cuBLASLt library behind them, loaded at run time. */
#ifndef KOPS_CUDA_BLASLT_PLAN_H
#define KOPS_CUDA_BLASLT_PLAN_H

#include <cublasLt.h>
#include <pthread.h>
#include <stdatomic.h>

#include "blaslt.h"
#include "driver/device.h"
#include "layout.h"
#include "util/list.h"

/* ---- the library ---- */

/* Every function that is called, once. X(Name): the symbol is "cublasLt<Name>". */
#define BLASLT_FUNCTIONS(X)                                                                                            \
    X(GetStatusName)                                                                                                   \
    X(GetVersion)                                                                                                      \
    X(MatmulDescCreate)                                                                                                \
    X(MatmulDescDestroy)                                                                                               \
    X(MatmulDescSetAttribute)                                                                                          \
    X(MatmulPreferenceCreate)                                                                                          \
    X(MatmulPreferenceDestroy)                                                                                         \
    X(MatmulPreferenceSetAttribute)                                                                                    \
    X(MatrixLayoutCreate)                                                                                              \
    X(MatrixLayoutDestroy)                                                                                             \
    X(MatrixLayoutSetAttribute)

/* Functions that work in a context: blaslt_on() alone gives them out. */
#define BLASLT_CONTEXT_FUNCTIONS(X)                                                                                    \
    X(Create)                                                                                                          \
    X(Destroy)                                                                                                         \
    X(Matmul)                                                                                                          \
    X(MatmulAlgoCheck)                                                                                                 \
    X(MatmulAlgoGetHeuristic)

#define X(Name) __typeof__(cublasLt##Name) *Name;
struct blaslt_api {
    void *library;
    BLASLT_FUNCTIONS(X)
};

struct blaslt_context_api {
    BLASLT_CONTEXT_FUNCTIONS(X)
};
#undef X

extern struct blaslt_api blaslt_api; /* filled once; blaslt_ready() comes before */

/* Loads the library now if it was to be loaded late. Error: unsupported, there is none. Thread: any; may block. */
int blaslt_ready(struct error *e);

/* The functions with the device's context made current, as cuda_on() does. */
const struct blaslt_context_api *blaslt_on(const struct cuda_device *d);

/* Fills `e` for a failed call and returns -1. */
int blaslt_fail(cublasStatus_t status, const char *call, struct error *e);

/* ---- plans ---- */

/* Fixed once it is in the cache, but for the addresses of a bias or of scales, which each run sets. */
struct blaslt_plan {
    atomic_uint refs; /* the cache's and each job's */
    struct list link; /* the cache's, like `next` */
    struct blaslt_plan *next;
    struct cuda_device *device;
    cublasLtHandle_t handle;
    struct blaslt_problem problem;
    struct blaslt_cached cached; /* the cache's */
    cublasLtMatmulDesc_t operation;
    pthread_mutex_t pointers_lock; /* guards the addresses in `operation` while a product is enqueued */
    cublasLtMatrixLayout_t layouts[BLASLT_OPERANDS];
    bool is_refused;    /* the library does not know such scales: it is not asked for an algorithm */
    bool has_algorithm; /* false: the library has none for this problem */
    cublasLtMatmulHeuristicResult_t algorithm;
};

/* Makes a plan with the device's handle; an algorithm may use `workspace_bytes` of scratch. `choice`, which may be
 * NULL, has an algorithm, which is taken if the library does. The plan's reference is the caller's. */
int blaslt_plan_make(struct cuda_device *d, cublasLtHandle_t handle, const struct blaslt_problem *problem,
                     uint64_t workspace_bytes, const struct tuning_choice *choice, struct blaslt_plan **ret_plan,
                     struct error *e);

/* Has the driver load the kernels of the product, so that its first run loads nothing: runs its algorithm on a small
 * product, or captures the product once where that cannot be. A failure is left to that run. Thread: any, the context
 * is current; may block. */
void blaslt_plan_load(struct blaslt_plan *p, const struct plan *plan, const uint64_t *addresses);

/* As blaslt_candidates(). */
int blaslt_plan_candidates(struct cuda_device *d, cublasLtHandle_t handle, const struct blaslt_problem *problem,
                           uint64_t workspace_bytes, struct tuning_candidate *ret, unsigned max, unsigned *ret_n,
                           struct error *e);

#endif

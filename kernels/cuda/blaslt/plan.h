/* The cuBLASLt library, loaded at run time, and plans: descriptors and algorithm of a gemm problem. */
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

/* X(Name) for each function in use; the symbol is "cublasLt<Name>". */
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

/* Functions that need a current context; get them from blaslt_on(). */
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

extern struct blaslt_api blaslt_api; /* filled by blaslt_ready() */

/* Makes the device's context current, as cuda_on() does, and returns the functions. */
const struct blaslt_context_api *blaslt_on(const struct cuda_device *d);

/* Fills `e` for a failed call and returns -1. */
int blaslt_fail(cublasStatus_t status, const char *call, struct error *e);

/* ---- plans ---- */

/* Constant once cached, except for the addresses of bias and scales, which each run sets. */
struct blaslt_plan {
    atomic_uint refs; /* held by the cache and by jobs */
    struct list link; /* in the cache, as `next` */
    struct blaslt_plan *next;
    struct cuda_device *device;
    cublasLtHandle_t handle;
    struct blaslt_problem problem;
    struct blaslt_cached cached; /* the key in the cache */
    cublasLtMatmulDesc_t operation;
    pthread_mutex_t pointers_lock; /* guards the addresses in `operation` while a product is enqueued */
    cublasLtMatrixLayout_t layouts[BLASLT_OPERANDS];
    bool is_refused;    /* the library lacks such scales, so no algorithm is asked for */
    bool has_algorithm; /* false: the library has none for this problem */
    cublasLtMatmulHeuristicResult_t algorithm;
};

/* Makes a plan with the device's handle; its algorithm may use `workspace_bytes` of scratch. `choice`, which may be
 * NULL, names the algorithm, if the library accepts it. The plan's reference is the caller's. */
int blaslt_plan_make(struct cuda_device *d, cublasLtHandle_t handle, const struct blaslt_problem *problem,
                     uint64_t workspace_bytes, const struct tuning_choice *choice, struct blaslt_plan **ret_plan,
                     struct error *e);

/* Makes the driver load the product's kernels, so that its first run loads nothing: runs the algorithm on a small
 * product or, where that is not possible, captures the product once. Failures are ignored; the first run will report
 * them. Thread: any, the context is current; may block. */
void blaslt_plan_load(struct blaslt_plan *p, const struct plan *plan, const uint64_t *addresses);

/* As blaslt_candidates(). */
int blaslt_plan_candidates(struct cuda_device *d, cublasLtHandle_t handle, const struct blaslt_problem *problem,
                           uint64_t workspace_bytes, struct tuning_candidate *ret, unsigned max, unsigned *ret_n,
                           struct error *e);

#endif

/* One gemm problem's descriptors and algorithm. */
#ifndef KOPS_CUDA_BLASLT_PLAN_H
#define KOPS_CUDA_BLASLT_PLAN_H

#include <pthread.h>
#include <stdatomic.h>

#include "blaslt.h"
#include "layout.h"
#include "library.h"
#include "util/list.h"

enum {
    BLASLT_CANDIDATES = 8,  /* where the first usable one is taken */
    BLASLT_TUNED_FROM = 32, /* a workspace, where they are measured */
};

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

/* A plan that has no algorithm yet. */
int blaslt_plan_describe(struct cuda_device *d, cublasLtHandle_t handle, const struct blaslt_problem *problem,
                         struct blaslt_plan **ret_plan, struct error *e);

/* Asks for at most `max` candidates and keeps the usable ones, best first by the library's own estimate. None is no
 * failure. */
cublasStatus_t blaslt_plan_ask(const struct blaslt_plan *p, uint64_t workspace_bytes, int max,
                               cublasLtMatmulHeuristicResult_t *ret, int *ret_n);

/* As blaslt_candidates(). */
int blaslt_plan_candidates(struct cuda_device *d, cublasLtHandle_t handle, const struct blaslt_problem *problem,
                           uint64_t workspace_bytes, struct tuning_candidate *ret, unsigned max, unsigned *ret_n,
                           struct error *e);

#endif

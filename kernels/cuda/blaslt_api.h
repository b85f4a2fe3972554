/* The loaded library's functions, and a device's handle to it: between blaslt.c and blaslt_plan.c only. */
#ifndef KOPS_CUDA_BLASLT_API_H
#define KOPS_CUDA_BLASLT_API_H

#include <cublasLt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "blaslt.h"
#include "blaslt_layout.h"
#include "blaslt_table.h"
#include "util/list.h"

struct blaslt_api {
    void *library;
#define X(Name) __typeof__(cublasLt##Name) *Name;
    BLASLT_FUNCTIONS(X)
#undef X
};

extern struct blaslt_api blaslt_api; /* filled once by blaslt_load() */

struct blaslt_context_api {
#define X(Name) __typeof__(cublasLt##Name) *Name;
    BLASLT_CONTEXT_FUNCTIONS(X)
#undef X
};

/* The functions that work in a context, with the device's made current, as cuda_on() does. */
const struct blaslt_context_api *blaslt_on(const struct cuda_device *d);

enum { BLASLT_CANDIDATES = 8, BLASLT_BUCKETS = 1024, BLASLT_PLANS_MAX = 2048 };

struct blaslt {
    struct cuda_device *device;
    pthread_mutex_t handle_lock;
    cublasLtHandle_t handle; /* made at the first plan */
    pthread_mutex_t lock;    /* what follows */
    struct blaslt_plan *buckets[BLASLT_BUCKETS];
    struct list recent; /* struct blaslt_plan, least recently used first */
    unsigned count;
};

/* One problem's descriptors and the library's candidates for it, best first. Fixed once it is in the cache, but for
 * `chosen`, which belongs to the loop thread. */
struct blaslt_plan {
    atomic_uint refs; /* the cache's and each job's */
    struct list link;
    struct blaslt_plan *next; /* in its bucket */
    struct blaslt_problem problem;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t layouts[BLASLT_OPERANDS];
    cublasLtMatmulHeuristicResult_t candidates[BLASLT_CANDIDATES];
    int n_candidates; /* 0: the library has no algorithm for this problem */
    int chosen;
};

/* The device's handle, made now if there is none yet, which takes long. */
int blaslt_handle(struct blaslt *b, cublasLtHandle_t *ret_handle, struct error *e);

/* Fills `e` for a failed call and returns -1. */
int blaslt_fail(cublasStatus_t status, const char *call, struct error *e);

/* Makes a plan; `workspace_bytes` is what an algorithm may use. Its reference is the caller's. */
int blaslt_plan_make(struct blaslt *b, const struct blaslt_problem *problem, uint64_t workspace_bytes,
                     struct blaslt_plan **ret_plan, struct error *e);

#endif

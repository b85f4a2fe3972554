/* The host device, and how it executes jobs. backend.c owns it. Constant from open() to close(), except for the
 * executor, which has a lock. */
#ifndef KOPS_HOST_DEVICE_H
#define KOPS_HOST_DEVICE_H

#include "backend/backend.h"
#include "core/op.h"
#include "gemm.h"
#include "guard.h"
#include "kernels.h"
#include "libraries.h"
#include "pool.h"

struct executor;

struct host_device {
    struct backend_device base; /* first: the server holds pointers to it */
    struct backend_host host;   /* wake may be NULL */
    size_t bypass_bytes;        /* larger results are stored past the caches */
    struct blas blas;
    struct onednn onednn;
    struct gemm_ways gemm;
    const char *elementwise_variants[CPU_ISAS + 1];
    struct executor *executor;
};

/* ---- jobs, executed step by step under the SIGBUS guard. Thread: the owner of the context. ---- */

/* A thread needs a context of its own to execute jobs. */
struct thread_context {
    struct guard *guard;
    struct pool *pool;
};

/* How a step is executed; equal for all repeats. */
struct execution {
    const struct kernels *kernels;
    const char *variant;
    /* gemm, see gemm.h */
    unsigned way;
    uint64_t key; /* class of a choice whose turn is measured */
    unsigned turn;
    bool measure;
};

/* Returns the variants of an op, best first, NULL-terminated; NULL: none. */
const char *const *execute_variants(struct host_device *device, const struct op *op, enum dtype dtype);

/* ---- element-wise ops over any plan: contiguous operands in ranges, strided or broadcast operands in tiles. Thread:
 * the pool's caller. ---- */

/* `pointers`: element (0, …, 0) of each input, then of the output. `bypass`: stores may go past the caches. */
void elementwise_run(struct pool *pool, const struct kernels *kernels, const struct op *op, const struct plan *plan,
                     unsigned char *const *pointers, bool bypass);

/* Estimates the time of one thread in ns, to decide where to run. */
double elementwise_cost_ns(const struct op *op, const struct plan *plan);

#endif

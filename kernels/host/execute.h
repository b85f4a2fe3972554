/* One execution of one step: which kernels, on which memory, under the SIGBUS guard. Thread: the one that owns the
 * context. */
#ifndef KOPS_HOST_EXECUTE_H
#define KOPS_HOST_EXECUTE_H

#include "backend/backend.h"
#include "guard.h"
#include "kernels.h"
#include "pool.h"

struct host_device;

/* The means of one thread to execute jobs, one at a time. */
struct thread_context {
    struct guard *guard;
    struct pool *pool;
};

/* How one step is executed, the same at every repeat. */
struct execution {
    const struct kernels *kernels;
    const char *variant;
    /* of gemm, see gemm_way.h */
    unsigned way;
    bool measure;
    uint64_t key;
};

/* The place to execute a job: on the loop thread, for a few µs; by one thread; or by all threads. */
enum execute_place { EXECUTE_INLINE, EXECUTE_LIGHT, EXECUTE_HEAVY };
enum execute_place execute_place(struct host_device *device, const struct backend_job *job);

/* The NULL-terminated variants of an op, best first; NULL: none. */
const char *const *execute_variants(struct host_device *device, const struct op *op, enum dtype dtype);

/* Resolves the variant; loads the library that it is of. Error: unsupported. */
int execute_begin(struct host_device *device, const struct thread_context *context, const struct step *step,
                  struct execution *ret_execution, struct error *e);

/* Errors: memory_fault, out_of_memory. */
int execute_once(struct host_device *device, const struct thread_context *context, const struct step *step,
                 const struct execution *execution, struct error *e);

#endif

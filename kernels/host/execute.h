/* One execution of one step: which kernels, on which memory, under the SIGBUS guard. Thread: whoever owns the seat. */
#ifndef KOPS_HOST_EXECUTE_H
#define KOPS_HOST_EXECUTE_H

#include "backend/backend.h"
#include "guard.h"
#include "kernels.h"
#include "pool.h"

struct host_device;

/* Where jobs are executed, one at a time. */
struct seat {
    struct guard *guard;
    struct pool *pool;
};

/* How one step is executed, the same at every repeat. */
struct execution {
    const struct kernels *kernels;
    bool blas;
    const char *variant;
};

/* How much of the machine a job is worth: it runs on the loop thread within a few µs, or on one thread, or on
 * all. */
enum execute_place { EXECUTE_INLINE, EXECUTE_LIGHT, EXECUTE_HEAVY };
enum execute_place execute_place(struct host_device *device, const struct backend_job *job);

/* The NULL-terminated variants of an op, best first; NULL: none. */
const char *const *execute_variants(struct host_device *device, const struct op *op, enum dtype dtype);

/* Whether the step can be executed here. Cheap; loads nothing. Errors: invalid_argument, unsupported. */
int execute_check(struct host_device *device, const struct backend_step *step, struct error *e);

/* Resolves the variant; loads the BLAS where it is the one. Errors: invalid_argument, unsupported. */
int execute_begin(struct host_device *device, const struct backend_step *step, struct execution *ret_execution,
                  struct error *e);

/* Errors: memory_fault, out_of_memory. */
int execute_once(struct host_device *device, const struct seat *seat, const struct backend_step *step,
                 const struct execution *execution, struct error *e);

#endif

/* SIGBUS guard: pages of a client's memory can vanish while kernels use them (a truncated file, a failed disk or
 * memory module); that fails the job, not the daemon.
 *
 * Before a kernel runs, guard_begin() announces the ranges that it will touch. A fault may come inside
 * a BLAS, which may hold locks: the handler must not jump out of it. The handler puts anonymous memory under the rest
 * of the announced range, marks the job and returns, so that the kernel runs to its end on meaningless data.
 * guard_end() then puts a mapping without pages there, so that later jobs on the same memory fail too, until it is
 * unmapped. A fault outside announced ranges goes to the handler that was installed before.
 *
 * Threads: each thread that executes jobs has a guard of its own. */
#ifndef KOPS_HOST_GUARD_H
#define KOPS_HOST_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/plan.h"
#include "util/error.h"

enum { GUARD_MAX_RANGES = PLAN_MAX_OPERANDS };

struct guard;

struct guard_range {
    uintptr_t start, end;
};

/* Installs the handler unless it is installed. Errors: out_of_memory, limit_exceeded. */
int guard_new(struct guard **ret_guard, struct error *e);
/* NULL is allowed; returns NULL. */
struct guard *guard_free(struct guard *guard);

/* Gives the calling thread a stack for the handler, unless it has one; it is freed when the thread ends. Needed before
 * code that uses the stack pointer for memory of its own, as oneDNN's does: the handler would run over what lies below
 * that. False: no memory. */
bool guard_own_stack(void);

void guard_begin(struct guard *guard, const struct guard_range *ranges, unsigned count);
/* True when a page was missing since guard_begin(): the results are meaningless. */
bool guard_end(struct guard *guard);

#endif

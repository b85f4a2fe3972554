/* SIGBUS guard: pages of a client's memory can vanish while kernels use them (a truncated file, a failed disk or memory
 * module). Then the job fails, not the daemon.
 *
 * guard_begin() announces the ranges that a kernel will access. The handler must not jump out of a fault, which may
 * occur in a BLAS that holds locks. It maps anonymous memory over the rest of the announced range, marks the job and
 * returns, so that the kernel ends with meaningless data. guard_end() then maps memory without pages there, so that
 * later jobs fail, too, until the memory is unmapped. A fault outside announced ranges goes to the previous handler.
 *
 * Threads: each thread that executes jobs has its own guard. */
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

/* Makes a guard, and installs the handler unless it is installed. Errors: out_of_memory, limit_exceeded. */
int guard_new(struct guard **ret_guard, struct error *e);
/* NULL is allowed; returns NULL. */
struct guard *guard_free(struct guard *guard);

/* Gives the calling thread a signal stack, unless it has one; freed when the thread ends. Needed before code that
 * points the stack pointer at its own memory, as oneDNN does, where the handler would overwrite that memory. False: no
 * memory. */
bool guard_own_stack(void);

void guard_begin(struct guard *guard, const struct guard_range *ranges, unsigned count);
/* Ends the announced ranges. True: a page was missing since guard_begin(), so the results are meaningless. */
bool guard_end(struct guard *guard);

#endif

/* Executors: processes that own the contexts of GPUs, so that the daemon has none.
 *
 * On the daemon's side an executor is a backend: struct backend over a ring in shared memory for all that the loop
 * calls, and over sockets for what may block. On its own side it is this program with EXECUTOR_ARGUMENT, which serves
 * cuda_backend. */
#ifndef KOPS_EXECUTOR_EXECUTOR_H
#define KOPS_EXECUTOR_EXECUTOR_H

#include "backend/backend.h"

#define EXECUTOR_ARGUMENT "--executor"

/* How executors are confined, see confine.h. */
enum executor_sandbox {
    EXECUTOR_SANDBOX_AUTO,     /* by what the system has */
    EXECUTOR_SANDBOX_REQUIRED, /* an executor that lacks a part of it does not start */
    EXECUTOR_SANDBOX_OFF,      /* as the daemon is: it has the daemon's user, environment and stderr */
};

/* The backend that reaches `gpus` in executors. Both live as long as the process, which has one of each. */
const struct backend *executor_backend(const struct gpu_backend *gpus);

/* Whether main() was called for an executor. */
bool executor_wanted(int argc, char **argv);

/* The executor's life; returns the status to end with. To be called before anything else in main(). */
int executor_main(int argc, char **argv, const struct gpu_backend *local);

#endif

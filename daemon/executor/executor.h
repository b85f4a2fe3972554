/* Executors and the tuner: processes that own the contexts of GPUs, so that the daemon has none.
 *
 * On the daemon's side an executor is a backend: struct backend over a ring in shared memory for all that the loop
 * calls, and over sockets for what may block. On its own side it is this program with EXECUTOR_ARGUMENT, which serves
 * cuda_backend. */
#ifndef KOPS_EXECUTOR_EXECUTOR_H
#define KOPS_EXECUTOR_EXECUTOR_H

#include "backend/backend.h"
#include "core/tuning.h"

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

/* ---- the tuner ----
 *
 * A process that measures for core/tuning.h. It has contexts of its own, the built-in kernels and memory of
 * its own, nothing of any client, and runs in the executors' sandbox. Its messages are checked like a client's bytes.
 */

struct tuner;

/* `config` lives as long as the tuner. No process is started yet. NULL: no memory. */
struct tuner *tuner_new(const struct backend_config *config);

/* Starts the process where there is none, so that it is there when it is needed: it has loaded the libraries, and has
 * no context yet, so it takes no memory of a GPU. The thread of tuner_tune(). */
int tuner_prepare(struct tuner *t, struct error *e);

/* Tunes on the device of that UUID in the process, which is started where there is none. Asks `pace` as the backend's
 * tune() does. One thread at a time. Errors: those of the backend's tune(); device_lost: the process has ended;
 * cancelled: tuner_stop() was called. */
int tuner_tune(struct tuner *t, const char *uuid, const struct tuning_request *request, struct tuning_pace *pace,
               struct tuning_result *ret, struct error *e);

/* Tells whether there is a process that has tuned, and so has a context, which takes memory of the GPU. The thread of
 * tuner_tune(). */
bool tuner_has_context(const struct tuner *t);

/* Ends the process, if there is one. The thread of tuner_tune(). */
void tuner_rest(struct tuner *t);

/* Makes tuner_tune() fail soon from now on. Thread: any. */
void tuner_stop(struct tuner *t);

/* No thread uses it. NULL is allowed. */
void tuner_free(struct tuner *t);

#define TUNER_ARGUMENT "--tuner"

/* Tells whether main() was called for a tuner. */
bool tuner_wanted(int argc, char **argv);
/* Runs the tuner; returns the status to end with. Call it before anything else in main(). */
int tuner_main(int argc, char **argv, const struct gpu_backend *local);

#endif

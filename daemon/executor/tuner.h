/* The tuner: a process that measures for core/tuning.h. It has contexts of its own, the built-in kernels and memory of
 * its own, nothing of any client, and runs in the executors' sandbox. Its messages are checked like a client's bytes.
 */
#ifndef KOPS_EXECUTOR_TUNER_H
#define KOPS_EXECUTOR_TUNER_H

#include "backend/backend.h"
#include "core/tuning.h"

/* ---- the daemon's side ---- */

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

/* ---- the process's side ---- */

#define TUNER_ARGUMENT "--tuner"

/* Tells whether main() was called for a tuner. */
bool tuner_wanted(int argc, char **argv);
/* Runs the tuner; returns the status to end with. Call it before anything else in main(). */
int tuner_main(int argc, char **argv, const struct gpu_backend *local);

#endif

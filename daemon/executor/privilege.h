/* Counters where the GPU's driver lets only administrators read them (RmProfilingAdminOnly: 1).
 *
 * The driver asks for a privilege when a process makes its profiler's object, and for none in later calls on that
 * object. From version 565 on CAP_PERFMON will do. An object made with CAP_SYS_ADMIN could also use registers that are
 * the administrator's, as long as it lives, so that one is never taken.
 *
 * Where the daemon has CAP_PERFMON and executors.counters_privileged allows it, a process that is to count keeps it for
 * its start. One thread has it in effect for the driver's calls of that moment. Threads that the driver starts in those
 * calls have it, too. All give it up before the process is told of any work (sandbox/process.h), by calls that the
 * filter leaves to every executor (confine.c), and the process ends if one does not. As all calls that ask for it
 * look at the machine's user namespace, the process has none of its own. */
#ifndef KOPS_EXECUTOR_PRIVILEGE_H
#define KOPS_EXECUTOR_PRIVILEGE_H

#include <stdbool.h>

#include "util/error.h"

enum { PRIVILEGE = 38 /* CAP_PERFMON, for headers before Linux 5.8 */ };

#define PRIVILEGE_PARAMETERS "/proc/driver/nvidia/params"

/* Tells whether the driver's parameters, a file, say that counters are for administrators. False where it cannot be
 * read. */
bool privilege_is_needed(const char *parameters);

/* ---- the executor's side ---- */

/* Lets one new thread use the privilege, and takes it from the caller. Call it in the sandbox, by the process's only
 * thread. */
int privilege_hand_over(struct error *e);
/* Has that thread call `use` with the privilege in effect; then no thread has it any more. *ret is the result of `use`,
 * with *why. -1: *e, some thread may still have it. Without privilege_hand_over() nothing is called: *ret is -1. */
int privilege_use(int (*use)(void *context, struct error *e), void *context, int *ret, struct error *why,
                  struct error *e);
/* Drops the privilege without a call: no thread has it any more. -1: as above. Harmless without privilege_hand_over().
 */
int privilege_drop(struct error *e);

#endif

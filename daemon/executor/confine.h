/* The sandbox of an executor. Users' kernels run in it, so it counts as their native code: it keeps its GPUs, the
 * memory and the sockets that the daemon gives it, and files that the driver reads, and nothing else.
 *
 * | by | it loses |
 * | --- | --- |
 * | a user of its own, where the daemon is root | all that the daemon's user may |
 * | a user namespace, if the system allows it; not with a privilege | tracing processes outside, of any user |
 * | no capabilities, no new ones, not dumpable | being traced by other executors |
 * | Landlock (sandbox/filter.h) | files, tracing, the network, signals to others |
 * | seccomp | calls that concern other processes, new processes, parts of the kernel that it does not need |
 * | an environment and a stderr of its own | the daemon's |
 *
 * The pid and ipc namespaces stay the machine's: CUDA IPC needs both. */
#ifndef KOPS_EXECUTOR_CONFINE_H
#define KOPS_EXECUTOR_CONFINE_H

#include <stdbool.h>
#include <sys/types.h>

#include "backend/backend.h"
#include "util/error.h"

/* ---- the daemon's side ---- */

/* Starts this program again with the argument `kind`, the arguments `own` ("key=value", at most 3, then NULL; NULL:
 * none) and those that confine_argument() takes, and `control` as CALL_CONTROL_FD. `mps`: it may be a client of MPS.
 * With a sandbox the process gets the part of the daemon's environment that drivers read, and its stderr is copied to
 * the log, by a thread of its own, until it ends. Thread: any. Returns 0, or an errno. */
int confine_spawn(const struct backend_config *config, const char *kind, const char *const *own, bool mps, int control,
                  pid_t *ret_pid);

/* ---- the executor's side ---- */

/* Takes an argument "key=value", which is cut at the "=", into the config, which points into it. Returns the value of
 * one that is none of the config's; else NULL. */
const char *confine_argument(char *argument, struct backend_config *config);

/* Kinds of processes, as far as their confinement differs. */
struct confine_what {
    bool common; /* false: the process is killed when the daemon ends, whatever it is doing */
    /* Keep the privilege to read counters, see below, where the process has it and a whole sandbox. */
    bool counts;
};

/* Confines the process. Call it while the process has one thread, before the driver is loaded and before the daemon's
 * descriptors come: all after CALL_CONTROL_FD are closed. `config` names the libraries. */
int confine_begin(const struct backend_config *config, struct confine_what what, struct error *e);

/* Finishes the confinement. Call it when the devices are open, before the first work. From then on the process makes no
 * sockets: those of MPS are open. Thread: any; all threads are confined. */
int confine_finish(struct error *e);

/* ---- the parts, of which tests try each alone ---- */

/* `mps`: the driver may reach MPS. */
int confine_files(const struct backend_config *config, bool mps, struct error *e);
int confine_calls(bool mps, struct error *e);
int confine_sockets(struct error *e);

/* The variable that tells an executor about its sandbox, "MODE" or "MODE:USER" with the number of enum
 * executor_sandbox. */
#define CONFINE_VARIABLE "KOPS_EXECUTOR_SANDBOX"

/* ---- the privilege to read counters ----
 *
 * Counters where the GPU's driver lets only administrators read them (RmProfilingAdminOnly: 1).
 *
 * The driver asks for a privilege when a process makes its profiler's object, and for none in later calls on that
 * object. From version 565 on CAP_PERFMON will do. An object made with CAP_SYS_ADMIN could also use registers that are
 * the administrator's, as long as it lives, so that one is never taken.
 *
 * Where the daemon has CAP_PERFMON and executors.counters_privileged allows it, a process that is to count keeps it for
 * its start. One thread has it in effect for the driver's calls of that moment. Threads that the driver starts in those
 * calls have it, too. All give it up before the process is told of any work (sandbox/process.h), by calls that the
 * filter leaves to every executor, and the process ends if one does not. As all calls that ask for it
 * look at the machine's user namespace, the process has none of its own. */

enum { PRIVILEGE = 38 /* CAP_PERFMON, for headers before Linux 5.8 */ };

#define PRIVILEGE_PARAMETERS "/proc/driver/nvidia/params"

/* Tells whether the driver's parameters, a file, say that counters are for administrators. False where it cannot be
 * read. */
bool privilege_is_needed(const char *parameters);

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

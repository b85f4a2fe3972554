/* The capabilities of all threads of a process, also of those that libraries have started.
 *
 * capset(2) changes the calling thread alone, so each thread has to make that call: a signal has it do so, as the C
 * library's setuid() does. Of libraries, libpsx does that for threads whose pthread_create() it has wrapped when the
 * program was linked, which are none of a library's that is loaded at run time. Here the threads are those of
 * /proc/self/task.
 *
 * Thread: any that has no capability, one at a time; in a sandbox that has /proc/self. */
#ifndef KOPS_SANDBOX_THREADS_H
#define KOPS_SANDBOX_THREADS_H

#include "util/error.h"

/* Whether no thread has a capability, or can have one by starting a program. *e says which thread has. */
int threads_check_no_capabilities(struct error *e);

/* Has every thread give up all that it has. 0: none has any, also none that was started meanwhile. -1: *e says which
 * thread has some after a second, and why; the process is to end, since it may get the signal still. */
int threads_drop_capabilities(struct error *e);

#endif

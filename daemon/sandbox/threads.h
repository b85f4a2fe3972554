/* Capabilities of all threads of a process, also of threads that libraries have started.
 *
 * capset(2) changes the calling thread alone, so each thread must make that call: a signal makes it do so, as in the C
 * library's setuid(). libpsx does that, too, but only for threads whose pthread_create() it wrapped when the program
 * was linked, not for those of a library loaded at run time. The threads here are those of /proc/self/task.
 *
 * Thread: any that has no capability, one at a time; in a sandbox that has /proc/self. */
#ifndef KOPS_SANDBOX_THREADS_H
#define KOPS_SANDBOX_THREADS_H

#include "util/error.h"

/* Checks that no thread has a capability, or can have one by starting a program. *e says which thread has. */
int threads_check_no_capabilities(struct error *e);

/* Makes every thread give up all its capabilities. 0: none has any, including threads that were started meanwhile. -1:
 * *e says which thread still has some after a second, and why; the process must end, since the thread may get the
 * signal later. */
int threads_drop_capabilities(struct error *e);

#endif

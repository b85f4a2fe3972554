/* Rights that a process gives up before it meets strangers' code or bytes: its user, its privileges, some of its
 * limits.
 *
 * Thread: the process's only one. Nothing here can be undone. */
#ifndef KOPS_SANDBOX_PROCESS_H
#define KOPS_SANDBOX_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/error.h"

/* Tells whether the process has no other thread. `stat`: a descriptor of /proc/self/stat, which describes the process
 * that opened it. False also where it cannot be read. */
bool process_is_single_threaded(int stat);

/* Becomes that user; the caller is root. `groups`: takes all groups of the user, otherwise only the user's own group.
 */
int process_become(const char *user, bool groups, struct error *e);

/* Enters a new user namespace, in which the user and the group keep their numbers. Processes outside of it cannot be
 * traced from it, whoever their user is. */
int process_enter_user_namespace(struct error *e);

int process_drop_capabilities(struct error *e);

/* Functions to keep one capability for a while. process_may_keep(): whether the process has it.
 * process_keep_over_users(): the next change of user does not take it; where possible, no program that the process
 * starts gets any. process_keep_one(): drops all others, and takes this one out of effect. process_use_one(): puts it
 * into effect for the calling thread. Entering a user namespace takes it. */
bool process_may_keep(unsigned capability);
int process_keep_over_users(struct error *e);
int process_keep_one(unsigned capability, struct error *e);
int process_use_one(unsigned capability, struct error *e);

/* Lets programs that the process starts get no privileges. The process cannot be traced by its user's other processes,
 * and leaves no core. */
int process_refuse_privileges(struct error *e);

/* Makes the process die with its parent, which must still be this process; a fork does not inherit that. */
int process_bind_to_parent(pid_t parent);

/* Makes this process the first of the daemon's to be killed when memory runs out. Where that cannot be set, it has the
 * daemon's rank. */
void process_go_first(void);

/* Lowers the soft and the hard limit to at most `value`. */
int process_limit(int resource, uint64_t value);

/* ---- capabilities of all threads, also of threads that libraries have started ----
 *
 * capset(2) changes the calling thread alone, so each thread must make that call: a signal makes it do so, as in the C
 * library's setuid(). libpsx does that, too, but only for threads whose pthread_create() it wrapped when the program
 * was linked, not for those of a library loaded at run time. The threads here are those of /proc/self/task.
 *
 * Thread: any that has no capability, one at a time; in a sandbox that has /proc/self. */

/* Checks that no thread has a capability, or can have one by starting a program. *e says which thread has. */
int threads_check_no_capabilities(struct error *e);

/* Makes every thread give up all its capabilities. 0: none has any, including threads that were started meanwhile. -1:
 * *e says which thread still has some after a second, and why; the process must end, since the thread may get the
 * signal later. */
int threads_drop_capabilities(struct error *e);

#endif

/* What a process that meets the code or the bytes of strangers gives up: its user, its privileges, some of its limits.
 *
 * Thread: the process's only one. Nothing here can be undone. */
#ifndef KOPS_SANDBOX_PROCESS_H
#define KOPS_SANDBOX_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/error.h"

/* Whether the process has no other thread. `stat`: a descriptor of /proc/self/stat, which describes the process that
 * opened it. False also where it cannot be read. */
bool process_is_single_threaded(int stat);

/* Becomes that user; the caller is root. `groups`: with the groups that the user is in, else with its own one only. */
int process_become(const char *user, bool groups, struct error *e);

/* A user namespace of its own, in which the user and the group keep their numbers. Processes outside of it cannot be
 * traced from it, whoever their user is. */
int process_enter_user_namespace(struct error *e);

int process_drop_capabilities(struct error *e);

/* For a while a process may keep one capability. process_may_keep(): whether it has it. process_keep_over_users(): a
 * change of user does not take it, once; also, where it may, no program that it starts gets any. process_keep_one(): it
 * has no other, and that one not in effect; process_use_one(): in effect, for the calling thread. A user namespace of
 * its own takes it. */
bool process_may_keep(unsigned capability);
int process_keep_over_users(struct error *e);
int process_keep_one(unsigned capability, struct error *e);
int process_use_one(unsigned capability, struct error *e);

/* Programs that it starts get no privileges; it cannot be traced by its user's other processes, and leaves no core. */
int process_refuse_privileges(struct error *e);

/* Dies with its parent, which must be this process still; that is not inherited by a fork. */
int process_bind_to_parent(pid_t parent);

/* Of the daemon's processes it is to go first when memory runs out. Where that cannot be said it goes as the daemon
 * does. */
void process_go_first(void);

/* The soft and the hard limit become at most `value`. */
int process_limit(int resource, uint64_t value);

#endif

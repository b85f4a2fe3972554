/* Starts another process of this daemon's. Thread: any. */
#ifndef KOPS_UTIL_SPAWN_H
#define KOPS_UTIL_SPAWN_H

#include <sys/types.h>

/* A descriptor of the daemon's, and the number that it has in the process. */
struct spawn_fd {
    int fd, there;
};

/* Starts a process with default signals, in a session of its own (keys pressed at the daemon's terminal do not reach
 * it). Of the daemon's descriptors it gets those without close-on-exec, and `fds`. A program without a slash is looked
 * for in PATH. Both lists of texts end with NULL. Returns 0, or an errno. */
int spawn_process(const char *program, char *const *arguments, char *const *environment, const struct spawn_fd *fds,
                  unsigned n_fds, pid_t *ret_pid);

#endif

/* Starts another process of this daemon's. Thread: any. */
#ifndef KOPS_UTIL_SPAWN_H
#define KOPS_UTIL_SPAWN_H

#include <sys/types.h>

/* A clean start: default signals, a session of its own (keys pressed at the daemon's terminal are not for it), and of
 * the daemon's descriptors only those without close-on-exec, and `fd` as `fd_there`. `error_fd`: its
 * stderr; negative: the daemon's. Both lists end with NULL. Returns 0, or an errno. */
int spawn_process(const char *program, char *const *arguments, char *const *environment, int fd, int fd_there,
                  int error_fd, pid_t *ret_pid);

#endif

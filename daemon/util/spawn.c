#include "util/spawn.h"

#include <signal.h>
#include <spawn.h>
#include <unistd.h>

int spawn_process(const char *program, char *const *arguments, char *const *environment, int fd, int fd_there,
                  int error_fd, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t all, none;
    int r;

    sigfillset(&all);
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    r = posix_spawn_file_actions_adddup2(&actions, fd, fd_there);
    if (!r && error_fd >= 0)
        r = posix_spawn_file_actions_adddup2(&actions, error_fd, STDERR_FILENO);
    if (!r)
        r = posix_spawn(ret_pid, program, &actions, &attributes, arguments, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return r;
}

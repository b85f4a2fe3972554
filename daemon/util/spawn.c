#include "util/spawn.h"

#include <signal.h>
#include <spawn.h>

int spawn_process(const char *program, char *const *arguments, char *const *environment, const struct spawn_fd *fds,
                  unsigned n_fds, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t all, none;
    int r = 0;

    sigfillset(&all);
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    for (unsigned i = 0; !r && i < n_fds; i++)
        r = posix_spawn_file_actions_adddup2(&actions, fds[i].fd, fds[i].there);
    if (!r)
        r = posix_spawnp(ret_pid, program, &actions, &attributes, arguments, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return r;
}

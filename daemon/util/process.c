#include "util/process.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/resource.h>
#include <unistd.h>

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

/* ---- starting it again ---- */

static unsigned after_service(struct backoff *b, uint64_t now_ms)
{
    const uint64_t burst_ms = (uint64_t)BACKOFF_BURST * BACKOFF_EACH_MS;

    b->failures = 0;
    if (b->paid_until_ms < now_ms)
        b->paid_until_ms = now_ms;
    b->paid_until_ms += BACKOFF_EACH_MS;
    return b->paid_until_ms - now_ms > burst_ms ? (unsigned)(b->paid_until_ms - now_ms - burst_ms) : 0;
}

static unsigned after_failure(struct backoff *b, uint64_t now_ms)
{
    unsigned delay_ms = BACKOFF_FIRST_MS;

    if (now_ms - b->last_ms > BACKOFF_FORGET_MS)
        b->failures = 0;
    b->failures++;
    if (b->failures == 1)
        return 0;
    for (unsigned i = 2; i < b->failures && delay_ms < BACKOFF_LAST_MS; i++)
        delay_ms *= 2;
    return delay_ms < BACKOFF_LAST_MS ? delay_ms : BACKOFF_LAST_MS;
}

unsigned backoff_after(struct backoff *b, bool had_served, uint64_t now_ms)
{
    const unsigned delay_ms = had_served ? after_service(b, now_ms) : after_failure(b, now_ms);

    b->last_ms = now_ms;
    return delay_ms;
}

/* ---- signals ---- */

void signals_ignore_stray(void)
{
    static const int stray[] = {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGSTKFLT, SIGIO, SIGPWR, SIGPIPE};

    for (size_t i = 0; i < sizeof(stray) / sizeof(stray[0]); i++)
        signal(stray[i], SIG_IGN);
    for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
        signal(number, SIG_IGN);
}

void signals_prepare_helper(void)
{
    signals_ignore_stray();
    signal(SIGHUP, SIG_IGN);
}

/* ---- processor time ---- */

enum { STEPS = 5, NICE_MOST = 19 };

void priority_lower(void)
{
    int nice;

    errno = 0;
    nice = getpriority(PRIO_PROCESS,
                       (id_t)getpid()); /* on Linux that of a thread, the first one; POSIX would mean the process */
    if (!errno)
        setpriority(PRIO_PROCESS, 0, nice + STEPS < NICE_MOST ? nice + STEPS : NICE_MOST);
}

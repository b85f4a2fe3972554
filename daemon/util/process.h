/* The daemon's processes: how one is started, when one that ended is started again, the signals that it ignores, and
 * the processor time that its threads leave to the event loop. */
#ifndef KOPS_UTIL_PROCESS_H
#define KOPS_UTIL_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- starting a process; thread: any ---- */

/* A descriptor of the daemon's, and the number that it has in the process. */
struct spawn_fd {
    int fd, there;
};

/* Starts a process with default signals, in a session of its own (keys pressed at the daemon's terminal do not reach
 * it). Of the daemon's descriptors it gets those without close-on-exec, and `fds`. A program without a slash is looked
 * for in PATH. Both lists of texts end with NULL. Returns 0, or an errno. */
int spawn_process(const char *program, char *const *arguments, char *const *environment, const struct spawn_fd *fds,
                  unsigned n_fds, pid_t *ret_pid);

/* ---- starting it again ---- */

/* Pause before a daemon that ended unasked is started again. A daemon that cannot serve is tried ever less often. A
 * daemon that had answered requests is started at once, since its clients wait, unless that happens again and again.
 * deploy/kopsd-backoff has the same rule for systemd, and the tests of both read tests/support/backoff.txt. */
enum {
    BACKOFF_FIRST_MS = 100,  /* after the second end in a row of a daemon that had answered nothing; then doubled … */
    BACKOFF_LAST_MS = 10000, /* … up to this */
    BACKOFF_FORGET_MS = 60000, /* ends that are further apart are not in a row */
    BACKOFF_BURST = 10,        /* starts at once of daemons that had served; … */
    BACKOFF_EACH_MS = 2000,    /* … one more is earned in this time */
};

/* All zero at first. Times are of one clock, in ms. */
struct backoff {
    unsigned failures;      /* ends in a row of daemons that had answered nothing */
    uint64_t last_ms;       /* the last end */
    uint64_t paid_until_ms; /* time when all the starts at once are earned again */
};

/* The daemon has ended; returns the ms until the next start. */
unsigned backoff_after(struct backoff *b, bool had_served, uint64_t now_ms);

/* ---- signals that mean nothing to it; thread: main, before there are others ---- */

/* Ignores signals that the daemon has no use for and whose default action ends the process: of users, clocks, input and
 * output, power, closed pipes, and the real-time signals. Signals that are sent on purpose to end a process (SIGTERM,
 * SIGQUIT, SIGABRT, ...), faults, and resource limits keep their action. */
void signals_ignore_stray(void);

/* Ignores these signals and SIGHUP in a process that serves the daemon: only the daemon reads its settings again. */
void signals_prepare_helper(void);

/* ---- processor time ---- */

/* The event loop, which serves every client, comes before threads that compute for one client or may be busy for long.
 * On an idle machine this changes nothing. */

/* Makes the calling thread, and the threads and processes that it starts from then on, five steps nicer than the
 * process's first thread, which is the loop's: about a third of its weight. Not for the first thread, which could not
 * undo it. */
void priority_lower(void);

#endif

/* Pause before a daemon that ended unasked is started again. A daemon that cannot serve is tried ever less often. A
 * daemon that had answered requests is started at once, since its clients wait, unless that happens again and again.
 * deploy/kopsd-backoff has the same rule for systemd, and the tests of both read tests/support/backoff.txt. Thread: the
 * caller's. */
#ifndef KOPS_UTIL_BACKOFF_H
#define KOPS_UTIL_BACKOFF_H

#include <stdbool.h>
#include <stdint.h>

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

#endif

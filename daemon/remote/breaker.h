/* A circuit breaker: after some failures in a row no question is asked for a time, which doubles with each trial that
 * fails. Thread: the caller's. */
#ifndef KOPS_REMOTE_BREAKER_H
#define KOPS_REMOTE_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

enum {
    BREAKER_FAILURES = 3,     /* failures in a row until it opens … */
    BREAKER_FIRST_MS = 1000,  /* … for this time, doubled with each trial that fails, … */
    BREAKER_LAST_MS = 300000, /* … up to this */
};

/* All zero at first: closed. Times are of one clock, in ms. */
struct breaker {
    unsigned failures; /* failures in a row, while closed */
    bool open, trying; /* trying: a trial is on its way */
    unsigned rest_ms;  /* length of this rest, or of the last one */
    uint64_t until_ms; /* when the rest ends */
};

/* Tells whether to ask now. When the rest of an open breaker is over, one caller gets true, for a trial. Each true must
 * be followed by one call of a function below: the question succeeded, failed, or its outcome is unknown. */
bool breaker_allows(struct breaker *b, uint64_t now_ms);

/* Return true when the breaker has closed, or has opened for the first time, for the log. */
bool breaker_succeed(struct breaker *b);
bool breaker_fail(struct breaker *b, uint64_t now_ms);
void breaker_abandon(struct breaker *b);

/* Returns the milliseconds until the next trial; 0: questions are allowed. */
uint64_t breaker_rests(const struct breaker *b, uint64_t now_ms);

#endif

/* A circuit breaker: after some failures in a row nobody asks for a time, which doubles with each trial that fails,
 * too. Thread: the caller's. */
#ifndef KOPS_REMOTE_BREAKER_H
#define KOPS_REMOTE_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

enum {
    BREAKER_FAILURES = 3,     /* in a row, and it opens … */
    BREAKER_FIRST_MS = 1000,  /* … for this time, doubled with each trial that fails, … */
    BREAKER_LAST_MS = 300000, /* … up to this */
};

/* All zero at first: closed. Times are of one clock, in ms. */
struct breaker {
    unsigned failures; /* in a row, while it is closed */
    bool open, trying; /* a trial is on its way */
    unsigned rest_ms;  /* this time, or the last one */
    uint64_t until_ms; /* when the rest ends */
};

/* Whether to ask now; when the rest of an open breaker is over, one caller hears yes, and is the trial. Each yes is
 * followed by one call of a function below: the question succeeded, failed, or nothing became known. */
bool breaker_allows(struct breaker *b, uint64_t now_ms);

/* Return whether the breaker has closed, or has opened for the first time: the log tells that. */
bool breaker_succeed(struct breaker *b);
bool breaker_fail(struct breaker *b, uint64_t now_ms);
void breaker_abandon(struct breaker *b);

/* Milliseconds until the next trial; 0: the breaker asks. */
uint64_t breaker_rests(const struct breaker *b, uint64_t now_ms);

#endif

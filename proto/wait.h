/* How the client, the daemon and an executor wait for the end of work: one rule, by a window of time.
 *
 * The daemon knows how long equal work took (executor/forecast.h). Nothing ends before the window begins, so a party
 * that waits sleeps until then. In the window it polls, since to be woken takes longer than most work on a GPU. Behind
 * the window the forecast was wrong: the party sleeps until it is woken. Times are of CLOCK_MONOTONIC, which all
 * processes of a machine share.
 *
 * Measured on H200 hosts with 16 virtual processors, where a wake-up takes 20 to 100 us: a blocking square of 500 us
 * takes 7 to 20 us more than torch's. Short sleeps at the end save 15 to 45 us of it. Windows that begin 40 or 60 us
 * before the end were neither faster nor cheaper, and `pause` in the polling loops made no difference. */
#ifndef KOPS_PROTO_WAIT_H
#define KOPS_PROTO_WAIT_H

#include <stdbool.h>
#include <stdint.h>

/* to_ns 0: nothing is known; WAIT_CROWDED: the daemon's processors are too few for all clients that wait to poll. */
struct wait_window {
    uint64_t from_ns, to_ns;
};

enum {
    WAIT_CROWDED = 1,
    WAIT_LEAD_NS = 100 * 1000,        /* a sleep ends so long before the expected end: timers are late, too */
    WAIT_LEAD_SHARE = 32,             /* and this part of the work's time earlier */
    WAIT_LEAST_SLEEP_NS = 150 * 1000, /* a shorter sleep saves less than the cold caches behind it cost */
    WAIT_NAP_NS = 100 * 1000,         /* after longer sleeps virtual processors wake later */
    WAIT_NAPS = 4,                    /* so many of the last sleeps before a window are short */
    WAIT_UNKNOWN_NS = 2 * 1000 * 1000 /* the window of work that nothing is known of begins at once */
};

/* Of work that begins at `begin_ns` and took `expected_ns` before; 0: nothing like it was seen. */
static inline struct wait_window wait_window_of(uint64_t begin_ns, uint64_t expected_ns)
{
    const uint64_t lead_ns = WAIT_LEAD_NS + expected_ns / WAIT_LEAD_SHARE;

    if (!expected_ns)
        return (struct wait_window){begin_ns, begin_ns + WAIT_UNKNOWN_NS};
    return (struct wait_window){begin_ns + (expected_ns > lead_ns ? expected_ns - lead_ns : 0),
                                begin_ns + expected_ns + lead_ns};
}

static inline bool wait_is_known(const struct wait_window *w)
{
    return w->to_ns > WAIT_CROWDED;
}

static inline bool wait_polls(const struct wait_window *w, uint64_t now_ns)
{
    return now_ns + WAIT_LEAST_SLEEP_NS >= w->from_ns && now_ns < w->to_ns;
}

/* Whether a sleep pays that ends when the window begins. */
static inline bool wait_sleeps_first(const struct wait_window *w, uint64_t now_ns)
{
    return wait_is_known(w) && now_ns + WAIT_LEAST_SLEEP_NS < w->from_ns;
}

/* When a sleep before the window ends, of which wait_sleeps_first() is true. */
static inline uint64_t wait_sleep_end(const struct wait_window *w, uint64_t now_ns)
{
    const uint64_t naps = (w->from_ns - now_ns - WAIT_LEAST_SLEEP_NS) / WAIT_NAP_NS;

    return w->from_ns - (naps < WAIT_NAPS ? naps : WAIT_NAPS) * WAIT_NAP_NS;
}

/* How long work will take, from how long it took: the shortest of late. A party that was woken late sees longer times,
 * so a longer one counts for a part. 0: not seen yet. */
static inline uint64_t wait_learn(uint64_t expected_ns, uint64_t seen_ns)
{
    uint64_t longer;

    if (!expected_ns || seen_ns <= expected_ns)
        return seen_ns ? seen_ns : 1;
    longer = seen_ns - expected_ns;
    if (longer > expected_ns)
        longer = expected_ns;
    return expected_ns + longer / 4;
}

#endif

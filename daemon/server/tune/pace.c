/* Owns nothing. */
#include "server/tune/pace.h"

/* How still a device must be, and how long one waits for that. */
static const struct patience {
    uint64_t still_ns, at_most_ns;
} asked = {1000 * 1000, 20 * 1000 * 1000}, idle = {100 * 1000 * 1000, 10ULL * 1000 * 1000 * 1000};

/* A device that is never still is measured after so many jobs for each that it had at a time. Those that it has at a
 * measurement, and often the ones behind them, are delayed: less than one in a hundred, so that the 99th percentile is
 * as before. */
enum { JOBS_BETWEEN = 400 };

void tune_pace_begin(struct tune_pace *p, uint64_t now_ns, uint64_t begun)
{
    p->begin_ns = p->still_ns = now_ns;
    p->begun = begun;
    p->most = 1;
}

static enum tune_word decide(const struct tune_pace *p, uint64_t now_ns)
{
    const struct patience *patience = p->idle ? &idle : &asked;
    const bool overdue = now_ns - p->begin_ns >= patience->at_most_ns;

    if (now_ns - p->still_ns >= patience->still_ns)
        return TUNE_GO;
    if (p->idle)
        return overdue ? TUNE_GIVE_UP : TUNE_WAIT;
    return overdue || p->begun - p->since >= (uint64_t)JOBS_BETWEEN * p->most ? TUNE_GO : TUNE_WAIT;
}

enum tune_word tune_pace_look(struct tune_pace *p, uint64_t now_ns, unsigned running, uint64_t begun)
{
    enum tune_word word;

    if (running || begun != p->begun)
        p->still_ns = now_ns;
    p->begun = begun;
    if (running > p->most)
        p->most = running;
    word = decide(p, now_ns);
    if (word == TUNE_GO)
        p->since = begun;
    return word;
}

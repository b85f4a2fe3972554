/* Decides when to measure, from what the tuning saw of the device: its pauses and how many jobs it began. */
#include "server/tune/pace.h"

/* How long a device must be without work before a measurement, and how long a pause lasts at most. */
static const struct patience {
    uint64_t still_ns, at_most_ns;
} asked = {1000 * 1000, 20 * 1000 * 1000}, idle = {100 * 1000 * 1000, 10ULL * 1000 * 1000 * 1000};

/* On a device that always has work, so many jobs begin between two measurements, for each job that it has at one time.
 * A measurement delays the jobs that it meets, and often one or two more of the same client. With 400 jobs the 99th
 * percentile of others' calls rose by 8 us on an H200, because other slow calls are already nearly one in a hundred. */
enum { JOBS_BETWEEN = 800 };

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

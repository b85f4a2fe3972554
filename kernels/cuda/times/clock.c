#include "clock.h"

enum {
    DRIFT_PPM = 100, /* 20 to 30 were seen */
    SEEN_NS = 2000 /* from an end to its being seen, at best: that a launch took is less certain, since the GPU may have
                      been another process's for its time slice */
};

/* None for what is older than the bound: records may be read in another order than that of their ends. */
static int64_t drift(uint64_t since_ns, uint64_t now_ns)
{
    return now_ns > since_ns ? (int64_t)((now_ns - since_ns) * DRIFT_PPM / 1000000) : 0;
}

void cuda_clock_learn(struct cuda_clock *c, uint64_t before_ns, uint64_t begin, uint64_t end, uint64_t seen_ns)
{
    const int64_t least = (int64_t)(before_ns - begin), most = (int64_t)(seen_ns - end);

    if (!c->least_ns || least >= c->least - drift(c->least_ns, seen_ns)) {
        c->least = least;
        c->least_ns = seen_ns;
    }
    if (!c->most_ns || most <= c->most + drift(c->most_ns, seen_ns)) {
        c->most = most;
        c->most_ns = seen_ns;
    }
}

uint64_t cuda_clock_host_ns(const struct cuda_clock *c, uint64_t gpu)
{
    const int64_t half = (c->most - c->least) / 2;

    if (!c->least_ns)
        return 0;
    return gpu + (uint64_t)(c->most - (half < SEEN_NS ? half : SEEN_NS));
}

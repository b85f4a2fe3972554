/* Judges counters. */
#include "core/counters.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A part of the device that has less than this much of its peak, in percent, does not bound a kernel. */
enum { BUSY_PCT = 60 };

/* ---- names ---- */

const char *counter_name(unsigned counter)
{
    static const char *const names[] = {
#define X(NAME, key) [COUNTER_##NAME] = #key,
        COUNTERS(X)
#undef X
    };

    return names[counter];
}

const char *counter_stall_name(unsigned stall)
{
    static const char *const names[] = {
#define X(NAME, key, what) [STALL_##NAME] = #key,
        COUNTER_STALLS(X)
#undef X
    };

    return names[stall];
}

const char *counter_limiter_name(unsigned limiter)
{
    static const char *const names[] = {[LIMITED_BY_WARPS] = "warps",
                                        [LIMITED_BY_BLOCKS] = "blocks",
                                        [LIMITED_BY_REGISTERS] = "registers",
                                        [LIMITED_BY_SHARED] = "shared_memory"};

    return names[limiter];
}

const char *counter_verdict_name(enum counter_verdict verdict)
{
    static const char *const names[] = {
        [BOUND_BY_MEMORY] = "memory", [BOUND_BY_COMPUTE] = "compute", [BOUND_BY_LATENCY] = "latency"};

    return names[verdict];
}

/* ---- values ---- */

void counters_clear(struct backend_counters *c)
{
    const bool warm = c->warm;

    memset(c, 0, sizeof(*c));
    c->warm = warm;
    c->launch.occupancy_pct = NAN;
    for (unsigned i = 0; i < COUNTER_COUNT; i++)
        c->values[i] = NAN;
    for (unsigned i = 0; i < STALL_COUNT; i++)
        c->stalls[i] = NAN;
}

/* A bool of another process may have any value. */
static void accept_bool(bool *b)
{
    const unsigned char value = *(const unsigned char *)b;

    *b = value != 0;
}

static void accept_number(double *value)
{
    if (!(*value >= 0 && *value < 1e18))
        *value = NAN;
}

void counters_accept(struct backend_counters *c)
{
    accept_bool(&c->warm);
    accept_bool(&c->knows_others);
    accept_bool(&c->has_launch);
    c->kernel[sizeof(c->kernel) - 1] = '\0';
    for (char *at = c->kernel; *at; at++)
        if (*at < ' ' || *at > '~')
            *at = '?';
    if (c->launch.limiter >= LIMITED_COUNT)
        c->launch.limiter = LIMITED_BY_WARPS;
    accept_number(&c->launch.occupancy_pct);
    for (unsigned i = 0; i < COUNTER_COUNT; i++)
        accept_number(&c->values[i]);
    /* Hits and accesses are counted in passes of their own, so few of them may seem to be more hits than accesses. */
    for (unsigned i = COUNTER_L2_HIT; i <= COUNTER_L1_HIT; i++)
        if (c->values[i] > 100)
            c->values[i] = 100;
    for (unsigned i = 0; i < STALL_COUNT; i++)
        accept_number(&c->stalls[i]);
}

double counters_stall_pct(const struct backend_counters *c, unsigned stall)
{
    double all = 0;

    for (unsigned i = 0; i < STALL_COUNT; i++)
        all += isnan(c->stalls[i]) ? 0 : c->stalls[i];
    return all > 0 ? 100 * c->stalls[stall] / all : NAN;
}

/* ---- the verdict ---- */

static double known(const struct backend_counters *c, enum counter counter)
{
    return isnan(c->values[counter]) ? 0 : c->values[counter];
}

/* The reason for which warps wait most; STALL_COUNT: none. Warps that go on, or could, do not wait. */
static unsigned find_stall(const struct backend_counters *c)
{
    unsigned most = STALL_COUNT;

    for (unsigned i = 0; i < STALL_COUNT; i++) {
        if (i == STALL_SELECTED || i == STALL_NOT_SELECTED || !(c->stalls[i] > 0))
            continue;
        if (most == STALL_COUNT || c->stalls[i] > c->stalls[most])
            most = i;
    }
    return most;
}

static void explain_memory(const struct backend_counters *c, char why[COUNTER_WHY_BYTES])
{
    const double dram = known(c, COUNTER_DRAM), l2 = known(c, COUNTER_L2), most = known(c, COUNTER_MEMORY);

    if (dram >= BUSY_PCT && dram >= l2)
        snprintf(why, COUNTER_WHY_BYTES, "DRAM is at %.1f %% of its peak", dram);
    else if (l2 >= BUSY_PCT)
        snprintf(why, COUNTER_WHY_BYTES, "the L2 cache is at %.1f %% of its peak, DRAM at %.1f %%", l2, dram);
    else
        snprintf(
            why, COUNTER_WHY_BYTES,
            "a part of the way to memory is at %.1f %% of its peak: L1 or shared memory, since L2 is at %.1f %% and "
            "DRAM at %.1f %%",
            most, l2, dram);
}

static void explain_compute(const struct backend_counters *c, char why[COUNTER_WHY_BYTES])
{
    const double tensor = known(c, COUNTER_TENSOR), sm = known(c, COUNTER_SM);

    if (tensor >= BUSY_PCT)
        snprintf(why, COUNTER_WHY_BYTES, "the tensor cores work in %.1f %% of the cycles", tensor);
    else
        snprintf(why, COUNTER_WHY_BYTES, "the busiest pipeline of the multiprocessors is at %.1f %% of its peak", sm);
}

static void explain_latency(const struct backend_counters *c, char why[COUNTER_WHY_BYTES])
{
    static const char *const waits_for[] = {
#define X(NAME, key, what) [STALL_##NAME] = what,
        COUNTER_STALLS(X)
#undef X
    };
    const uint64_t blocks = (uint64_t)c->launch.grid[0] * c->launch.grid[1] * c->launch.grid[2];
    const unsigned stall = find_stall(c);
    int n = snprintf(why, COUNTER_WHY_BYTES,
                     "neither memory (%.1f %% of its peak) nor the multiprocessors (%.1f %%) are busy",
                     known(c, COUNTER_MEMORY), known(c, COUNTER_SM));

    if (c->has_launch && blocks < c->multiprocessors)
        snprintf(why + n, (size_t)(COUNTER_WHY_BYTES - n), ": the grid has %llu block%s for %u multiprocessors",
                 (unsigned long long)blocks, blocks == 1 ? "" : "s", c->multiprocessors);
    else if (stall < STALL_COUNT)
        snprintf(why + n, (size_t)(COUNTER_WHY_BYTES - n), ": warps wait %.0f %% of their time for %s",
                 counters_stall_pct(c, stall), waits_for[stall]);
}

enum counter_verdict counters_judge(const struct backend_counters *c, char ret_why[COUNTER_WHY_BYTES])
{
    const double memory = known(c, COUNTER_MEMORY), compute = known(c, COUNTER_SM);

    if (memory < BUSY_PCT && compute < BUSY_PCT) {
        explain_latency(c, ret_why);
        return BOUND_BY_LATENCY;
    }
    if (memory >= compute) {
        explain_memory(c, ret_why);
        return BOUND_BY_MEMORY;
    }
    explain_compute(c, ret_why);
    return BOUND_BY_COMPUTE;
}

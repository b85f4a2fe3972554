#include "clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

uint64_t clock_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t clock_coarse_ns(void)
{
    return read_clock(CLOCK_MONOTONIC_COARSE);
}

uint64_t deadline_in(int64_t ms)
{
    if (ms < 0 || ms > INT64_MAX / 2000000)
        return DEADLINE_NEVER;
    return clock_ns() + (uint64_t)ms * 1000000U;
}

int deadline_poll_ms(uint64_t deadline)
{
    uint64_t now, ms;

    if (deadline == DEADLINE_NEVER)
        return -1;
    now = clock_ns();
    if (now >= deadline)
        return 0;
    ms = (deadline - now + 999999U) / 1000000U;
    return ms < 1000000 ? (int)ms : 1000000;
}

#include "ending.h"

#include <time.h>

static const uint64_t second_ns = 1000000000;

void ending_block(sigset_t *ret_ending)
{
    sigemptyset(ret_ending);
    sigaddset(ret_ending, SIGINT);
    sigaddset(ret_ending, SIGTERM);
    sigaddset(ret_ending, SIGHUP);
    sigprocmask(SIG_BLOCK, ret_ending, NULL);
    signal(SIGPIPE, SIG_IGN);
}

uint64_t ending_clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * second_ns + (uint64_t)now.tv_nsec;
}

bool ending_wait(const sigset_t *ending, uint64_t until_ns)
{
    const uint64_t now = ending_clock_ns(), left = until_ns > now ? until_ns - now : 0;
    const struct timespec time = {.tv_sec = (time_t)(left / second_ns), .tv_nsec = (long)(left % second_ns)};

    return sigtimedwait(ending, NULL, &time) > 0;
}

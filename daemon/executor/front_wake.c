/* The two ways to have the loop look at the front: now, from any thread, and at a time. */
#include <sys/timerfd.h>

#include "executor/front.h"

void front_tell(struct front *f)
{
    atomic_store(&f->news, true);
    f->host.wake(f->host.context);
}

void front_set_timer(struct front *f, uint64_t at_ns)
{
    const struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(at_ns / 1000000000), .tv_nsec = (long)(at_ns % 1000000000)}};

    if (at_ns >= f->timer_ns)
        return;
    f->timer_ns = at_ns;
    timerfd_settime(f->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

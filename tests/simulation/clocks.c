/* Virtual time: clocks, sleeps and timers of the C library. */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "preload.h"

enum {
    SECOND_NS = 1000000000,
    LOOK_NS = 40,
    LOOKS = 16,          /* so many in a row: it polls */
    LONGEST_LOOK = 5000, /* ns that pass at one more */
};

static struct timespec time_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / SECOND_NS), .tv_nsec = (long)(ns % SECOND_NS)};
}

static uint64_t ns_of(const struct timespec *t)
{
    return t->tv_sec < 0 ? 0 : (uint64_t)t->tv_sec * SECOND_NS + (uint64_t)t->tv_nsec;
}

/* A thread that reads the clock again and again polls memory: time passes faster, and others get the turn. */
static void look_at_clock(void)
{
    uint64_t ns = LOOK_NS;

    if (++me->looks > LOOKS)
        ns += (uint64_t)(me->looks - LOOKS) * LOOK_NS;
    if (ns > LONGEST_LOOK)
        ns = LONGEST_LOOK;
    world->now_ns += ns;
    me->ran_ns += ns;
    if (me->looks > LOOKS)
        give_way();
}

EXPORT int clock_gettime(clockid_t id, struct timespec *t)
{
    if (!simulated() || id < 0)
        return REAL(clock_gettime)(id, t);
    look_at_clock();
    switch (id) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        *t = time_of(world->now_ns + EPOCH_NS);
        break;
    case CLOCK_PROCESS_CPUTIME_ID:
    case CLOCK_THREAD_CPUTIME_ID:
        *t = time_of(me->ran_ns);
        break;
    default:
        *t = time_of(world->now_ns);
    }
    return 0;
}

EXPORT int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    if (!simulated())
        return REAL(gettimeofday)(t, zone);
    look_at_clock();
    *t = (struct timeval){.tv_sec = (time_t)((world->now_ns + EPOCH_NS) / SECOND_NS),
                          .tv_usec = (suseconds_t)((world->now_ns + EPOCH_NS) % SECOND_NS / 1000)};
    return 0;
}

EXPORT time_t time(time_t *ret)
{
    time_t now;

    if (!simulated())
        return REAL(time)(ret);
    now = (time_t)((world->now_ns + EPOCH_NS) / SECOND_NS);
    if (ret)
        *ret = now;
    return now;
}

/* ---- sleeps ---- */

EXPORT int clock_nanosleep(clockid_t id, int flags, const struct timespec *t, struct timespec *rest)
{
    uint64_t until;

    if (!simulated())
        return REAL(clock_nanosleep)(id, flags, t, rest);
    until = ns_of(t);
    if (!(flags & TIMER_ABSTIME))
        until += world->now_ns;
    else if (id == CLOCK_REALTIME)
        until = until > EPOCH_NS ? until - EPOCH_NS : 0;
    step();
    me->sleeps = until > world->now_ns + SECOND_NS;
    while (world->now_ns < until)
        wait_until(until, KEY_NONE);
    if (me->sleeps)
        world->quiet_since_ns = NEVER;
    me->sleeps = 0;
    return 0;
}

EXPORT int nanosleep(const struct timespec *t, struct timespec *rest)
{
    if (!simulated())
        return REAL(nanosleep)(t, rest);
    return clock_nanosleep(CLOCK_MONOTONIC, 0, t, rest);
}

EXPORT int usleep(useconds_t us)
{
    const struct timespec t = time_of((uint64_t)us * 1000);

    return simulated() ? nanosleep(&t, NULL) : REAL(usleep)(us);
}

EXPORT unsigned sleep(unsigned s)
{
    const struct timespec t = {.tv_sec = (time_t)s};

    if (!simulated())
        return REAL(sleep)(s);
    nanosleep(&t, NULL);
    return 0;
}

EXPORT int sched_yield(void)
{
    if (!simulated())
        return REAL(sched_yield)();
    look_at_clock();
    give_way();
    return 0;
}

/* ---- timerfd: an eventfd; a thread of this process that waits writes to it when the timer is due ---- */

enum { TIMERS = 64 };

static struct {
    bool used;
    int fd;
    uint64_t at_ns, every_ns;
} timers[TIMERS];

EXPORT int timerfd_create(clockid_t id, int flags)
{
    int fd;

    if (!simulated())
        return REAL(timerfd_create)(id, flags);
    fd = eventfd(0, (flags & TFD_CLOEXEC ? EFD_CLOEXEC : 0) | (flags & TFD_NONBLOCK ? EFD_NONBLOCK : 0));
    for (unsigned i = 0; fd >= 0 && i < TIMERS; i++) {
        if (timers[i].used)
            continue;
        timers[i].used = true;
        timers[i].fd = fd;
        timers[i].at_ns = NEVER;
        return fd;
    }
    return fd;
}

EXPORT int timerfd_settime(int fd, int flags, const struct itimerspec *new, struct itimerspec *old)
{
    uint64_t drained, at;

    for (unsigned i = 0; i < TIMERS; i++) {
        if (!timers[i].used || timers[i].fd != fd)
            continue;
        at = ns_of(&new->it_value);
        timers[i].every_ns = ns_of(&new->it_interval);
        timers[i].at_ns = !at ? NEVER : flags & TFD_TIMER_ABSTIME ? at : world->now_ns + at;
        while (REAL(read)(fd, &drained, sizeof(drained)) > 0) /* all of ours are non-blocking */
            ;
        changed_descriptors(true); /* who waits in this process looks when it is due */
        return 0;
    }
    return REAL(timerfd_settime)(fd, flags, new, old);
}

uint64_t timers_expire(void)
{
    const uint64_t one = 1;
    uint64_t first = NEVER;

    for (unsigned i = 0; i < TIMERS; i++) {
        if (!timers[i].used || timers[i].at_ns == NEVER)
            continue;
        if (timers[i].at_ns <= world->now_ns) {
            if (REAL(write)(timers[i].fd, &one, sizeof(one)) < 0)
                continue;
            timers[i].at_ns = timers[i].every_ns ? world->now_ns + timers[i].every_ns : NEVER;
            changed_descriptors(true);
        }
        if (timers[i].at_ns < first)
            first = timers[i].at_ns;
    }
    return first;
}

void timers_forget(int fd)
{
    for (unsigned i = 0; i < TIMERS; i++)
        if (timers[i].used && timers[i].fd == fd)
            timers[i].used = false;
}

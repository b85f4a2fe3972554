/* Time and deadlines, CLOCK_MONOTONIC in nanoseconds, and the process. Thread: any. */
#ifndef KOPS_CLIENT_CLOCK_H
#define KOPS_CLIENT_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define DEADLINE_NEVER UINT64_MAX

uint64_t clock_ns(void);

/* The same clock as the system's last tick left it, some milliseconds late: a fraction of the cost. Never ahead of
 * clock_ns(). */
uint64_t clock_coarse_ns(void);

/* The deadline that lies `ms` ahead; negative: never. */
uint64_t deadline_in(int64_t ms);

/* Milliseconds until then for poll(2), rounded up; -1 for never. */
int deadline_poll_ms(uint64_t deadline);

static inline bool deadline_passed(uint64_t deadline)
{
    return deadline != DEADLINE_NEVER && clock_ns() >= deadline;
}

/* getpid() without a system call, since every call of the library asks. The number is kept in a page that the kernel
 * empties in the child of every fork, however it is made. */
pid_t process_id(void);

#endif

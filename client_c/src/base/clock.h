/* Time and deadlines, CLOCK_MONOTONIC in nanoseconds, and the process. Thread: any. */
#ifndef KOPS_CLIENT_CLOCK_H
#define KOPS_CLIENT_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define DEADLINE_NEVER UINT64_MAX

uint64_t clock_ns(void);

/* Returns the time of the last timer tick: some milliseconds late, never ahead of clock_ns(), and far cheaper. */
uint64_t clock_coarse_ns(void);

/* Returns the deadline `ms` ahead; negative: never. */
uint64_t deadline_in(int64_t ms);

/* Returns the milliseconds until the deadline for poll(2), rounded up; -1 for never. */
int deadline_poll_ms(uint64_t deadline);

static inline bool deadline_passed(uint64_t deadline)
{
    return deadline != DEADLINE_NEVER && clock_ns() >= deadline;
}

/* Returns getpid() without a system call, since every call of the library asks. The number is in a page that the kernel
 * zeroes in the child of every kind of fork. */
pid_t process_id(void);

#endif

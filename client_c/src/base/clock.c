#include "clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- time ---- */

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

/* ---- the process ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic(_Atomic pid_t *) kept; /* NULL: not made yet, or the kernel is too old for it */

static void make_page(void)
{
    const size_t size = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return;
    if (madvise(page, size, MADV_WIPEONFORK))
        munmap(page, size);
    else
        atomic_store_explicit(&kept, page, memory_order_release);
}

pid_t process_id(void)
{
    _Atomic pid_t *page = atomic_load_explicit(&kept, memory_order_acquire);
    pid_t pid = 0;

    if (page)
        pid = atomic_load_explicit(page, memory_order_relaxed);
    if (pid)
        return pid;
    pid = getpid();
    pthread_once(&once, make_page);
    page = atomic_load_explicit(&kept, memory_order_acquire);
    if (page)
        atomic_store_explicit(page, pid, memory_order_relaxed);
    return pid;
}

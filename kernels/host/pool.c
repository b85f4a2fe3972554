/* Owns the helper threads and their scratch memory. */
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/process.h"

enum {
    POLLS = 400, /* some 10 µs, about the cost of waking a blocked thread */
    /* Polls of a caller that waits for helpers which are kept off its processor. It does not sleep sooner, since it
     * would be woken on the processor of the helper that wakes it, and that helper would have to move. */
    CALLER_POLLS = 40 * POLLS,
    SCRATCH_ALIGN = 4096
};

/* A bit of `state`: items may be left. The lower bits count helpers that joined. */
static const uint32_t OPEN = 1U << 31;

struct member {
    struct pool *pool;
    unsigned index;
    pthread_t thread;
    void *scratch;
    size_t scratch_bytes;
};

struct pool {
    unsigned threads, started;  /* started: number of helpers */
    unsigned apart, apart_from; /* number of helpers that are kept off processor apart_from */
    atomic_bool stop;
    _Atomic uint32_t generation; /* futex: incremented by each run */
    _Atomic uint32_t state;      /* futex: the caller waits for the last helper */
    atomic_uint sleepers;
    /* The run; written only while it is closed and no helper has joined. */
    pool_task *task;
    void *context;
    size_t items;
    const atomic_bool *watched;
    _Atomic size_t next __attribute__((aligned(64)));
    struct member members[]; /* member 0 is the caller */
};

static void relax(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, unsigned count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

void pool_block_signals(void)
{
    sigset_t set;

    sigfillset(&set);
    sigdelset(&set, SIGBUS);
    sigdelset(&set, SIGSEGV);
    sigdelset(&set, SIGFPE);
    sigdelset(&set, SIGILL);
    sigdelset(&set, SIGABRT);
    sigdelset(&set, SIGTRAP);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
}

void pool_watch(struct pool *p, const atomic_bool *stop)
{
    p->watched = stop;
}

bool pool_is_stopped(const struct pool *p)
{
    return p->watched && atomic_load_explicit(p->watched, memory_order_relaxed);
}

static void run_items(struct pool *p, unsigned thread)
{
    for (;;) {
        size_t item = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);

        if (item >= p->items || pool_is_stopped(p))
            return;
        p->task(p->context, thread, item);
    }
}

/* Joins the run, if it is open. */
static void help(struct pool *p, unsigned thread)
{
    uint32_t state = atomic_load(&p->state);

    do {
        if (!(state & OPEN))
            return;
    } while (!atomic_compare_exchange_weak(&p->state, &state, state + 1));
    run_items(p, thread);
    if (atomic_fetch_sub(&p->state, 1) == 1) /* the run is closed, and this helper was the last */
        futex_wake(&p->state, 1);
}

static void *helper(void *argument)
{
    struct member *m = argument;
    struct pool *p = m->pool;
    uint32_t seen = 0;
    char name[16];

    snprintf(name, sizeof(name), "kops-work-%u", m->index % 1000);
    pthread_setname_np(pthread_self(), name);
    pool_block_signals();
    priority_lower();
    while (!atomic_load(&p->stop)) {
        for (unsigned polls = 0; polls < POLLS && atomic_load(&p->generation) == seen; polls++)
            relax();
        if (atomic_load(&p->generation) == seen) {
            atomic_fetch_add(&p->sleepers, 1);
            if (!atomic_load(&p->stop))
                futex_wait(&p->generation, seen);
            atomic_fetch_sub(&p->sleepers, 1);
        }
        seen = atomic_load(&p->generation);
        help(p, m->index);
    }
    return NULL;
}

int pool_new(unsigned threads, struct pool **ret_pool, struct error *e)
{
    struct pool *p = aligned_alloc(64, (sizeof(*p) + threads * sizeof(p->members[0]) + 63) / 64 * 64);

    if (!p)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a pool of %u threads", threads);
    *p = (struct pool){.threads = threads};
    for (unsigned i = 0; i < threads; i++)
        p->members[i] = (struct member){.pool = p, .index = i};
    *ret_pool = p;
    return 0;
}

struct pool *pool_free(struct pool *p)
{
    if (!p)
        return NULL;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->generation, 1);
    futex_wake(&p->generation, p->threads);
    for (unsigned i = 1; i <= p->started; i++)
        pthread_join(p->members[i].thread, NULL);
    for (unsigned i = 0; i < p->threads; i++)
        free(p->members[i].scratch);
    free(p);
    return NULL;
}

unsigned pool_threads(const struct pool *p)
{
    return p->threads;
}

/* Starts missing helpers. If a thread cannot be started, the existing ones do the work. */
static void start_helpers(struct pool *p)
{
    while (p->started + 1 < p->threads) {
        struct member *m = &p->members[p->started + 1];

        if (pthread_create(&m->thread, NULL, helper, m) != 0)
            break;
        p->started++;
    }
}

/* Keeps helpers off the caller's processor; the caller may move. Otherwise, after a sleep, the system woke a helper on
 * its caller's processor and left both there for many products, although another processor was idle (2 processors,
 * Linux 6.18: 512 cubed in f32 at 238 GFLOP/s, not 430). */
static void keep_apart(struct pool *p)
{
    const int here = sched_getcpu();
    cpu_set_t set;

    if (here < 0 || here >= CPU_SETSIZE || (p->apart == p->started && p->apart_from == (unsigned)here))
        return;
    /* Changes nothing if the machine has more processors than a set can hold. */
    if (sched_getaffinity(0, sizeof(set), &set) < 0 || CPU_COUNT(&set) < 2)
        return;
    CPU_CLR((size_t)here, &set);
    for (unsigned i = 1; i <= p->started; i++)
        pthread_setaffinity_np(p->members[i].thread, sizeof(set), &set);
    p->apart = p->started;
    p->apart_from = (unsigned)here;
}

void pool_run(struct pool *p, size_t items, pool_task *task, void *context)
{
    unsigned sleepers, most;
    uint32_t state;

    if (p->threads == 1 || items <= 1) {
        for (size_t i = 0; i < items && !pool_is_stopped(p); i++)
            task(context, 0, i);
        return;
    }
    start_helpers(p);
    keep_apart(p);
    p->task = task;
    p->context = context;
    p->items = items;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store(&p->state, OPEN);
    atomic_fetch_add(&p->generation, 1);
    sleepers = atomic_load(&p->sleepers);
    if (sleepers)
        futex_wake(&p->generation, items - 1 < sleepers ? (unsigned)(items - 1) : sleepers);
    run_items(p, 0);
    state = atomic_fetch_and(&p->state, ~OPEN) & ~OPEN;
    most = p->apart ? CALLER_POLLS : POLLS;
    for (unsigned polls = 0; state && polls < most; polls++) {
        relax();
        state = atomic_load(&p->state);
    }
    while (state) {
        futex_wait(&p->state, state);
        state = atomic_load(&p->state);
    }
}

static int reserve(struct member *m, size_t bytes, struct error *e)
{
    if (m->scratch_bytes >= bytes)
        return 0;
    free(m->scratch);
    m->scratch_bytes = (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    m->scratch = aligned_alloc(SCRATCH_ALIGN, m->scratch_bytes);
    if (m->scratch)
        return 0;
    m->scratch_bytes = 0;
    return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for %zu bytes of scratch", bytes);
}

int pool_reserve(struct pool *p, size_t bytes, struct error *e)
{
    for (unsigned i = 0; i < p->threads; i++)
        if (reserve(&p->members[i], bytes, e) < 0)
            return -1;
    return 0;
}

void *pool_scratch(const struct pool *p, unsigned thread)
{
    return p->members[thread].scratch;
}

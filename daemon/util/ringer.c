#include "util/ringer.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "util/clock.h"

enum {
    QUEUE = 4096,       /* a power of two */
    AT_ONCE = 2,        /* bells of one turn that do not wake the thread */
    STAYS_UP_NS = 30000 /* after its last bell: waking it is as dear as a bell */
};

struct ringer {
    pthread_t thread;
    bool started;
    unsigned this_turn;
    atomic_bool stop;
    sem_t wanted;
    _Alignas(64) atomic_uint asked; /* the owner's */
    _Alignas(64) atomic_uint rung;  /* the thread's */
    _Alignas(64) atomic_bool asleep;
    int fds[QUEUE];
};

static void ring(int fd)
{
    const uint64_t one = 1;

    /* A full pipe has bells enough in it; one that nobody reads any more is not ours to report. */
    while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static bool work(struct ringer *r)
{
    unsigned rung = atomic_load_explicit(&r->rung, memory_order_relaxed);
    bool any = false;

    while (rung != atomic_load_explicit(&r->asked, memory_order_acquire)) {
        ring(r->fds[rung % QUEUE]);
        atomic_store_explicit(&r->rung, ++rung, memory_order_release);
        any = true;
    }
    return any;
}

static void *run(void *argument)
{
    struct ringer *r = argument;
    uint64_t last = clock_now_ns();

    while (!atomic_load(&r->stop)) {
        if (work(r)) {
            last = clock_now_ns();
        } else if (clock_now_ns() - last > STAYS_UP_NS) {
            atomic_store(&r->asleep, true);
            /* Whoever asks after this sees that it sleeps; what was asked before is seen here. */
            if (atomic_load(&r->asked) == atomic_load(&r->rung) || !atomic_exchange(&r->asleep, false))
                while (sem_wait(&r->wanted) < 0)
                    ;
            last = clock_now_ns();
        }
    }
    return NULL;
}

int ringer_new(struct ringer **ret_ringer, struct error *e)
{
    struct ringer *r = aligned_alloc(64, (sizeof(*r) + 63) / 64 * 64);

    if (!r)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a thread that wakes clients");
    *r = (struct ringer){.started = false};
    sem_init(&r->wanted, 0, 0);
    *ret_ringer = r;
    return 0;
}

struct ringer *ringer_free(struct ringer *r)
{
    if (!r)
        return NULL;
    atomic_store(&r->stop, true);
    if (r->started) {
        sem_post(&r->wanted);
        pthread_join(r->thread, NULL);
    }
    sem_destroy(&r->wanted);
    free(r);
    return NULL;
}

static bool start(struct ringer *r)
{
    sigset_t all, before;

    if (r->started)
        return true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r->started = pthread_create(&r->thread, NULL, run, r) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r->started;
}

void ringer_ring(struct ringer *r, int fd)
{
    unsigned asked;

    if (!r) {
        ring(fd);
        return;
    }
    asked = atomic_load_explicit(&r->asked, memory_order_relaxed);
    if ((!r->started || atomic_load_explicit(&r->asleep, memory_order_relaxed)) && r->this_turn++ < AT_ONCE) {
        ring(fd);
        return;
    }
    if (asked - atomic_load_explicit(&r->rung, memory_order_acquire) == QUEUE || !start(r)) {
        ring(fd);
        return;
    }
    r->fds[asked % QUEUE] = fd;
    atomic_store(&r->asked, asked + 1);
    if (atomic_exchange(&r->asleep, false))
        sem_post(&r->wanted);
}

void ringer_turn(struct ringer *r)
{
    if (r)
        r->this_turn = 0;
}

void ringer_settle(struct ringer *r)
{
    while (r && atomic_load(&r->rung) != atomic_load_explicit(&r->asked, memory_order_relaxed))
        ;
}

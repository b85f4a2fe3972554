#include "util/waker.h"

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
    AT_ONCE = 2,        /* wake-ups of one turn that do not start the thread */
    STAYS_UP_NS = 30000 /* after its last write: starting it again costs as much as a write */
};

struct waker {
    pthread_t thread;
    bool started;
    unsigned this_turn;
    atomic_bool stop;
    sem_t wanted;
    _Alignas(64) atomic_uint asked; /* the owner's */
    _Alignas(64) atomic_uint done;  /* the thread's */
    _Alignas(64) atomic_bool asleep;
    int fds[QUEUE];
};

static void wake(int fd)
{
    const uint64_t one = 1;

    /* A full pipe wakes its reader anyway; a pipe without a reader is no error here. */
    while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static bool work(struct waker *r)
{
    unsigned done = atomic_load_explicit(&r->done, memory_order_relaxed);
    bool any = false;

    while (done != atomic_load_explicit(&r->asked, memory_order_acquire)) {
        wake(r->fds[done % QUEUE]);
        atomic_store_explicit(&r->done, ++done, memory_order_release);
        any = true;
    }
    return any;
}

static void *run(void *argument)
{
    struct waker *r = argument;
    uint64_t last = clock_now_ns();

    while (!atomic_load(&r->stop)) {
        if (work(r)) {
            last = clock_now_ns();
        } else if (clock_now_ns() - last > STAYS_UP_NS) {
            atomic_store(&r->asleep, true);
            /* Later requests see that the thread sleeps; earlier requests are seen here. */
            if (atomic_load(&r->asked) == atomic_load(&r->done) || !atomic_exchange(&r->asleep, false))
                while (sem_wait(&r->wanted) < 0)
                    ;
            last = clock_now_ns();
        }
    }
    return NULL;
}

int waker_new(struct waker **ret_waker, struct error *e)
{
    struct waker *r = aligned_alloc(64, (sizeof(*r) + 63) / 64 * 64);

    if (!r)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a thread that wakes clients");
    *r = (struct waker){.started = false};
    sem_init(&r->wanted, 0, 0);
    *ret_waker = r;
    return 0;
}

struct waker *waker_free(struct waker *r)
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

static bool start(struct waker *r)
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

void waker_wake(struct waker *r, int fd)
{
    unsigned asked;

    if (!r) {
        wake(fd);
        return;
    }
    asked = atomic_load_explicit(&r->asked, memory_order_relaxed);
    if ((!r->started || atomic_load_explicit(&r->asleep, memory_order_relaxed)) && r->this_turn++ < AT_ONCE) {
        wake(fd);
        return;
    }
    if (asked - atomic_load_explicit(&r->done, memory_order_acquire) == QUEUE || !start(r)) {
        wake(fd);
        return;
    }
    r->fds[asked % QUEUE] = fd;
    atomic_store(&r->asked, asked + 1);
    if (atomic_exchange(&r->asleep, false))
        sem_post(&r->wanted);
}

void waker_turn(struct waker *r)
{
    if (r)
        r->this_turn = 0;
}

void waker_settle(struct waker *r)
{
    while (r && atomic_load(&r->done) != atomic_load_explicit(&r->asked, memory_order_relaxed))
        ;
}

#include "waiter.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "util/clock.h"

enum {
    WAITERS_MAX = 33, /* a thread for each of 32 streams that run at once, and a last one that naps for all others */
    CALLS_MAX = 8,
    NAP_MIN_NS = 20 * 1000,
    NAP_MAX_NS = 500 * 1000,
    NAP_SHARE = 8 /* a nap lasts 1/8 of the time since work last ended, within these bounds */
};

enum waiter_task { TASK_NONE, TASK_EVENT, TASK_NAP, TASK_CALL, TASK_QUIT };

struct waiter {
    struct cuda_waiters *owner;
    pthread_t thread;
    pthread_cond_t wanted;
    enum waiter_task task; /* the owner's lock guards `task` and all members below */
    CUevent event;
    uint64_t nap_ns;
    void (*function)(void *argument); /* TASK_CALL */
    void *argument;
    bool adopted; /* the thread returns the event to its pool */
    enum cuda_event_kind kind;
};

struct cuda_waiters {
    struct cuda_device *device;
    pthread_mutex_t lock;
    unsigned count; /* threads running */
    unsigned calls; /* threads with TASK_CALL */
    struct waiter items[WAITERS_MAX];
};

static void sleep_on(struct cuda_device *d, CUevent event, uint64_t nap_ns)
{
    const struct timespec nap = {.tv_nsec = (long)nap_ns};
    struct error ignored;
    CUresult r = CUDA_SUCCESS;

    if (event)
        r = cuda_on(d)->EventSynchronize(event);
    else
        nanosleep(&nap, NULL);
    /* cuda_fail_unseen() breaks the device; poll() then fails its jobs. */
    if (r != CUDA_SUCCESS)
        cuda_fail_unseen(d, r, "cuEventSynchronize", &ignored);
}

static void *run(void *argument)
{
    struct waiter *me = argument;
    struct cuda_waiters *w = me->owner;
    struct cuda_device *d = w->device;
    struct error ignored;
    uint64_t nap_ns;
    CUevent event;
    bool called;

    cuda_enter(d, &ignored);
    pthread_mutex_lock(&w->lock);
    while (me->task != TASK_QUIT) {
        if (me->task == TASK_NONE) {
            pthread_cond_wait(&me->wanted, &w->lock);
            continue;
        }
        called = me->task == TASK_CALL;
        event = me->event;
        nap_ns = me->nap_ns;
        pthread_mutex_unlock(&w->lock);
        if (called)
            me->function(me->argument);
        else
            sleep_on(d, event, nap_ns);
        pthread_mutex_lock(&w->lock);
        w->calls -= called;
        if (me->adopted)
            cuda_event_return(d, me->kind, me->event);
        me->adopted = false;
        me->event = NULL;
        if (me->task != TASK_QUIT)
            me->task = TASK_NONE;
        d->host.wake(d->host.context);
    }
    if (me->adopted) /* the thread was to quit before it saw the event */
        cuda_event_return(d, me->kind, me->event);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Signals are blocked in the thread: the loop handles them. */
static int start(struct cuda_waiters *w, struct waiter *me)
{
    sigset_t all, before;
    int r;

    me->owner = w;
    me->task = TASK_NONE;
    pthread_cond_init(&me->wanted, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&me->thread, NULL, run, me);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r != 0)
        pthread_cond_destroy(&me->wanted);
    return r;
}

struct cuda_waiters *cuda_waiters_new(struct cuda_device *d)
{
    struct cuda_waiters *w = calloc(1, sizeof(*w));

    if (!w)
        return NULL;
    w->device = d;
    pthread_mutex_init(&w->lock, NULL);
    return w;
}

struct cuda_waiters *cuda_waiters_free(struct cuda_waiters *w)
{
    if (!w)
        return NULL;
    pthread_mutex_lock(&w->lock);
    for (unsigned i = 0; i < w->count; i++) {
        w->items[i].task = TASK_QUIT;
        pthread_cond_signal(&w->items[i].wanted);
    }
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->count; i++) {
        pthread_join(w->items[i].thread, NULL);
        pthread_cond_destroy(&w->items[i].wanted);
    }
    pthread_mutex_destroy(&w->lock);
    free(w);
    return NULL;
}

/* Returns an idle thread, or a new one; NULL: all are busy. Under the lock. */
static struct waiter *find_idle(struct cuda_waiters *w)
{
    for (unsigned i = 0; i < w->count; i++)
        if (w->items[i].task == TASK_NONE)
            return &w->items[i];
    if (w->count == WAITERS_MAX || start(w, &w->items[w->count]) != 0)
        return NULL;
    return &w->items[w->count++];
}

static uint64_t nap_time(uint64_t progress_ns)
{
    uint64_t ns = (clock_now_ns() - progress_ns) / NAP_SHARE;

    return ns < NAP_MIN_NS ? NAP_MIN_NS : ns > NAP_MAX_NS ? NAP_MAX_NS : ns;
}

/* Gives the event to a thread. With NULL, or if only the last thread is free, the thread naps instead. True: a thread
 * sleeps on the event. Under the lock. */
static bool assign(struct cuda_waiters *w, CUevent event, uint64_t progress_ns)
{
    struct waiter *idle = find_idle(w);

    if (!idle)
        return false;
    if (idle == &w->items[WAITERS_MAX - 1])
        event = NULL;
    idle->event = event;
    idle->nap_ns = event ? 0 : nap_time(progress_ns);
    idle->adopted = false;
    idle->task = event ? TASK_EVENT : TASK_NAP;
    pthread_cond_signal(&idle->wanted);
    return event != NULL;
}

static bool naps(const struct cuda_waiters *w)
{
    for (unsigned i = 0; i < w->count; i++)
        if (w->items[i].task == TASK_NAP)
            return true;
    return false;
}

bool cuda_waiters_sleep(struct cuda_waiters *w, CUevent event, uint64_t progress_ns)
{
    bool sleeps;

    pthread_mutex_lock(&w->lock);
    sleeps = assign(w, event, progress_ns);
    pthread_mutex_unlock(&w->lock);
    return sleeps;
}

bool cuda_waiters_nap(struct cuda_waiters *w, uint64_t progress_ns)
{
    bool there;

    pthread_mutex_lock(&w->lock);
    if (!naps(w))
        assign(w, NULL, progress_ns);
    there = naps(w);
    pthread_mutex_unlock(&w->lock);
    return there;
}

bool cuda_waiters_call(struct cuda_waiters *w, void (*function)(void *argument), void *argument)
{
    struct waiter *idle;
    bool none;

    pthread_mutex_lock(&w->lock);
    idle = w->calls < CALLS_MAX ? find_idle(w) : NULL;
    if (idle == &w->items[WAITERS_MAX - 1])
        idle = NULL; /* the last thread naps for all others */
    none = w->count == 0;
    if (idle) {
        idle->function = function;
        idle->argument = argument;
        idle->task = TASK_CALL;
        w->calls++;
        pthread_cond_signal(&idle->wanted);
    }
    pthread_mutex_unlock(&w->lock);
    if (none)
        function(argument);
    return idle || none;
}

void cuda_waiters_adopt(struct cuda_waiters *w, enum cuda_event_kind kind, CUevent event)
{
    pthread_mutex_lock(&w->lock);
    for (unsigned i = 0; i < w->count; i++) {
        if (w->items[i].task == TASK_EVENT && w->items[i].event == event) {
            w->items[i].kind = kind;
            w->items[i].adopted = true;
            event = NULL;
            break;
        }
    }
    pthread_mutex_unlock(&w->lock);
    cuda_event_return(w->device, kind, event);
}

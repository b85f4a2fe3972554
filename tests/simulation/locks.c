/* Locks, conditions, semaphores and threads. */
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "preload.h"

static uint64_t deadline_of(const struct timespec *t)
{
    const uint64_t ns = (uint64_t)t->tv_sec * 1000000000U + (uint64_t)t->tv_nsec;

    return ns >= EPOCH_NS ? ns - EPOCH_NS : ns; /* of whichever clock */
}

/* ---- mutexes ---- */

static int lock(pthread_mutex_t *mutex)
{
    int r;

    while ((r = REAL(pthread_mutex_trylock)(mutex)) == EBUSY)
        wait_until(NEVER, party_key(mutex));
    return r;
}

EXPORT int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (!simulated())
        return REAL(pthread_mutex_lock)(mutex);
    step();
    return lock(mutex);
}

EXPORT int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    const int r = REAL(pthread_mutex_unlock)(mutex);

    if (simulated()) {
        wake_all(party_key(mutex));
        step();
    }
    return r;
}

#define LOCK_SHARED(name, attempt)                                                                                     \
    EXPORT int name(pthread_rwlock_t *rwlock)                                                                          \
    {                                                                                                                  \
        int r;                                                                                                         \
                                                                                                                       \
        if (!simulated())                                                                                              \
            return REAL(name)(rwlock);                                                                                 \
        step();                                                                                                        \
        while ((r = attempt(rwlock)) == EBUSY)                                                                         \
            wait_until(NEVER, party_key(rwlock));                                                                      \
        return r;                                                                                                      \
    }

LOCK_SHARED(pthread_rwlock_rdlock, pthread_rwlock_tryrdlock)
LOCK_SHARED(pthread_rwlock_wrlock, pthread_rwlock_trywrlock)

EXPORT int pthread_rwlock_unlock(pthread_rwlock_t *rwlock)
{
    const int r = REAL(pthread_rwlock_unlock)(rwlock);

    if (simulated())
        wake_all(party_key(rwlock));
    return r;
}

/* ---- conditions ---- */

static int wait_for(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t until)
{
    bool came;

    REAL(pthread_mutex_unlock)(mutex);
    wake_all(party_key(mutex));
    came = wait_until(until, party_key(condition));
    lock(mutex);
    return came ? 0 : ETIMEDOUT;
}

EXPORT int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    return simulated() ? wait_for(condition, mutex, NEVER) : REAL(pthread_cond_wait)(condition, mutex);
}

EXPORT int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    if (!simulated())
        return REAL(pthread_cond_timedwait)(condition, mutex, until);
    return wait_for(condition, mutex, deadline_of(until));
}

EXPORT int pthread_cond_signal(pthread_cond_t *condition)
{
    if (!simulated())
        return REAL(pthread_cond_signal)(condition);
    wake_one(party_key(condition));
    step();
    return 0;
}

EXPORT int pthread_cond_broadcast(pthread_cond_t *condition)
{
    if (!simulated())
        return REAL(pthread_cond_broadcast)(condition);
    wake_all(party_key(condition));
    step();
    return 0;
}

/* ---- semaphores ---- */

EXPORT int sem_wait(sem_t *semaphore)
{
    if (!simulated())
        return REAL(sem_wait)(semaphore);
    step();
    while (sem_trywait(semaphore) < 0) {
        if (errno != EAGAIN)
            return -1;
        wait_until(NEVER, party_key(semaphore));
    }
    return 0;
}

EXPORT int sem_post(sem_t *semaphore)
{
    const int r = REAL(sem_post)(semaphore);

    if (simulated()) {
        wake_all(party_key(semaphore));
        step();
    }
    return r;
}

/* ---- threads ---- */

struct start {
    void *(*run)(void *);
    void *argument;
    unsigned party;
};

static uint64_t end_key(const struct party *p)
{
    return party_key(p) ^ 2;
}

static void thread_ends(void *unused)
{
    (void)unused;
    if (!simulated())
        return;
    wake_all(end_key(me));
    leave(false);
}

static void *begin(void *given)
{
    const struct start start = *(struct start *)given;
    void *result;

    me = &world->parties[start.party];
    world_wait_for_turn(world, me);
    my_turn = true;
    me->state = PARTY_READY;
    free(given); /* in its turn: where the next memory lies would be chance otherwise */
    pthread_cleanup_push(thread_ends, NULL);
    result = start.run(start.argument);
    pthread_cleanup_pop(1);
    return result;
}

EXPORT int pthread_create(pthread_t *restrict ret, const pthread_attr_t *restrict attributes, void *(*run)(void *),
                          void *restrict argument)
{
    struct start *start = simulated() ? malloc(sizeof(*start)) : NULL;
    struct party *p;
    int r;

    if (!start)
        return REAL(pthread_create)(ret, attributes, run, argument);
    *start = (struct start){run, argument, world_add(world, me->process, me->group, me->name)};
    p = &world->parties[start->party];
    p->thread = 1;
    r = REAL(pthread_create)(ret, attributes, begin, start);
    if (r) {
        p->state = PARTY_ENDED;
        free(start);
    } else {
        p->thread = (uint64_t)*ret;
    }
    step();
    return r;
}

EXPORT int pthread_join(pthread_t thread, void **result)
{
    for (unsigned i = 1; simulated() && i < world->n_parties; i++) {
        const struct party *p = &world->parties[i];

        while (p->thread == (uint64_t)thread && p->process == me->process && p->state != PARTY_ENDED)
            wait_until(NEVER, end_key(p));
    }
    return REAL(pthread_join)(thread, result);
}

/* The threads of a pool. */
#include <sched.h>
#include <stdatomic.h>

#include "pool.h"
#include "support.h"

enum { RUNS = 200 };

/* What a run has seen. */
struct seen {
    atomic_uint arrived;
    cpu_set_t helper; /* the processors that it may have */
};

/* Each of two threads waits for the other one. */
static void meet(void *context, unsigned thread, size_t item)
{
    struct seen *s = context;

    if (thread)
        assert_int_equal(sched_getaffinity(0, sizeof(s->helper), &s->helper), 0);
    atomic_fetch_add(&s->arrived, 1);
    while (atomic_load(&s->arrived) < 2)
        sched_yield();
}

TEST(a_helper_keeps_off_its_callers_processor)
{
    unsigned apart = 0;
    struct pool *pool;
    cpu_set_t all;

    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    if (CPU_COUNT(&all) < 2)
        skip();
    MUST(pool_new(2, &pool, &e));
    for (unsigned i = 0; i < RUNS; i++) {
        struct seen s = {.arrived = 0};
        const int before = sched_getcpu();

        pool_run(pool, 2, meet, &s);
        assert_int_equal(CPU_COUNT(&s.helper), CPU_COUNT(&all) - 1);
        apart += !CPU_ISSET((size_t)before, &s.helper); /* unless the caller has moved in between */
    }
    assert_true(apart > RUNS / 2);
    pool_free(pool);
}

/* A caller that may have one processor shares it. */
TEST(a_single_processor_is_shared)
{
    struct seen s = {.arrived = 0};
    struct pool *pool;
    cpu_set_t all, one;

    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    MUST(pool_new(2, &pool, &e));
    pool_run(pool, 2, meet, &s);
    assert_true(CPU_EQUAL(&s.helper, &one));
    pool_free(pool);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

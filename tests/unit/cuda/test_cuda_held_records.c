/* Records that come late: CUPTI hands none out of a buffer in which a launch has not ended, so those of a stream that
 * always has more to do come when it pauses. The backend's clock stands still, but for what a test adds. */
#include "recorded_support.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

enum { BACKLOG = 12, POLLS = 20, UNREAD_MAX = 768, MS = 1000 * 1000 };

/* ---- the code's clock and its flushes, under the test's hand ---- */

static atomic_ullong now_ns;  /* 0: the real one */
static atomic_ullong tick_ns; /* each look at it takes */
static unsigned flushes;
static bool nothing_comes; /* of a flush */

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
bool __real_cuda_records_flush(void);
bool __wrap_cuda_records_flush(void);

int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    uint64_t now;

    if (id != CLOCK_MONOTONIC || !atomic_load(&now_ns))
        return __real_clock_gettime(id, t);
    now = atomic_fetch_add(&now_ns, atomic_load(&tick_ns));
    *t = (struct timespec){.tv_sec = (time_t)(now / (1000 * MS)), .tv_nsec = (long)(now % (1000 * MS))};
    return 0;
}

bool __wrap_cuda_records_flush(void)
{
    flushes++;
    return nothing_comes || __real_cuda_records_flush();
}

static void pass_time(uint64_t ns)
{
    atomic_fetch_add(&now_ns, ns);
}

/* ---- kernels that end one by one ---- */

static struct custom custom;
static struct test_job jobs[BACKLOG];
static int64_t run_before;

static int begin(void **state)
{
    struct timespec t;

    setup_with_cupti(state);
    custom = open_custom();
    make_custom(&custom, &jobs[0], TIMING_EXACT); /* CUPTI is started */
    run_job(custom.stream, &jobs[0]);
    run_before = counter(STANDIN_COUNTER_kernels_run);
    __real_clock_gettime(CLOCK_MONOTONIC, &t);
    atomic_store(&now_ns, (uint64_t)t.tv_sec * 1000 * MS + (uint64_t)t.tv_nsec);
    gate_close(STANDIN_GATE_kernel);
    flushes = 0;
    return 0;
}

static int end(void **state)
{
    gate_open(STANDIN_GATE_kernel);
    nothing_comes = false;
    atomic_store(&now_ns, 0);
    atomic_store(&tick_ns, 0);
    return teardown(state);
}

static void begin_job(unsigned number, struct backend_stream *stream, enum backend_timing timing)
{
    make_custom(&custom, &jobs[number], timing);
    start_job(stream, &jobs[number]);
}

static void poll_some(void)
{
    for (unsigned i = 0; i < POLLS; i++)
        backend->poll(device);
}

/* The rest ends, and the backend has not looked yet. */
static void let_all_end(void)
{
    gate_open(STANDIN_GATE_kernel);
    while (counter(STANDIN_COUNTER_queued))
        sched_yield();
}

/* The first of these kernels ends, and the backend has seen that. */
static void let_first_end(void)
{
    gate_pass_one(STANDIN_GATE_kernel);
    while (!jobs[0].job.ended)
        backend->poll(device);
}

/* Of two kernels on a stream the first one ends. */
static void let_first_of_two_end(void)
{
    begin_job(0, custom.stream, TIMING_EXACT);
    begin_job(1, custom.stream, TIMING_EXACT);
    let_first_end();
}

static void expect_time(struct test_job *t)
{
    finish(t);
    assert_false(t->job.failed);
    assert_int_equal(t->job.timer, TIMER_CUPTI);
    assert_int_equal(t->job.n_samples, 1);
}

static void expect_times(unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        expect_time(&jobs[i]);
}

/* ---- exact times ---- */

#define HELD(name) TEST_WITH(name, begin, end)

HELD(test_a_backlog_has_all_its_times)
{
    for (unsigned i = 0; i < BACKLOG; i++)
        begin_job(i, custom.stream, TIMING_EXACT);
    let_first_end();
    for (unsigned i = 1; i < BACKLOG; i++) {
        poll_some();
        assert_false(jobs[0].done);
        pass_time(60 * MS);
        gate_pass_one(STANDIN_GATE_kernel);
        while (counter(STANDIN_COUNTER_kernels_run) < run_before + i + 1)
            backend->poll(device);
    }
    expect_times(BACKLOG);
}

HELD(test_another_streams_kernels_hold_back)
{
    struct backend_stream *other = stream_open();

    begin_job(0, custom.stream, TIMING_EXACT);
    wait_at_gate(STANDIN_GATE_kernel, 1);
    begin_job(1, other, TIMING_EXACT);
    gate_pass_one(STANDIN_GATE_kernel); /* either of them */
    while (!jobs[0].job.ended && !jobs[1].job.ended)
        backend->poll(device);
    pass_time(500 * MS);
    poll_some();
    assert_false(jobs[0].done || jobs[1].done);
    let_all_end();
    expect_times(2);
}

HELD(test_a_busy_stream_does_not_wait_for_ever)
{
    let_first_of_two_end();
    pass_time(1900 * MS);
    poll_some();
    assert_false(jobs[0].done);
    pass_time(101 * MS);
    poll_some();
    assert_true(jobs[0].done);
    assert_int_equal(jobs[0].job.n_samples, 0);
    let_all_end();
    expect_time(&jobs[1]);
}

/* A flush costs 20 us, and the loop polls without a pause. */
HELD(test_flushes_have_pauses)
{
    begin_job(0, custom.stream, TIMING_EXACT);
    begin_job(1, custom.stream, TIMING_EXACT);
    pass_time(MS);
    let_first_end();
    for (unsigned i = 1; i < 5; i++) {
        poll_some();
        assert_int_equal(flushes, i);
        pass_time(MS / 2);
    }
    let_all_end();
    finish(&jobs[1]);
    assert_true(jobs[0].done);
}

/* What was held back need not be there at the first flush behind the last kernel. */
HELD(test_the_end_of_a_backlog_has_some_time)
{
    let_first_of_two_end();
    pass_time(3 * MS);
    poll_some();
    pass_time(1500 * MS);
    nothing_comes = true;
    let_all_end();
    pass_time(1500 * MS);
    poll_some();
    pass_time(90 * MS);
    poll_some();
    assert_false(jobs[0].done);
    nothing_comes = false;
    expect_times(2);
}

HELD(test_a_record_that_is_lost_is_given_up)
{
    begin_job(0, custom.stream, TIMING_EXACT);
    nothing_comes = true;
    let_first_end();
    pass_time(99 * MS);
    poll_some();
    assert_false(jobs[0].done);
    pass_time(2 * MS);
    poll_some();
    assert_true(jobs[0].done);
    assert_int_equal(jobs[0].job.n_samples, 0);
}

/* However late the backend looks: what CUPTI has is asked for first. */
HELD(test_nothing_is_given_up_unasked)
{
    let_first_of_two_end();
    poll_some();
    let_all_end();
    pass_time(5000ULL * MS);
    expect_times(2);
}

/* A job that repeats goes on: its last executions keep their times. */
HELD(test_many_executions_outrun_their_records)
{
    struct test_job *t = &jobs[0];
    uint32_t unasked;

    make_custom(&custom, t, TIMING_EXACT);
    t->job.repeat = SAMPLES_MAX;
    nothing_comes = true;
    atomic_store(&tick_ns, MS / 100);
    gate_open(STANDIN_GATE_kernel);
    start_job(custom.stream, t);
    while (t->job.ended < UNREAD_MAX + 200)
        backend->poll(device);
    nothing_comes = false;
    unasked = t->job.ended;
    finish(t);
    assert_true(t->job.n_samples < SAMPLES_MAX);
    assert_true(t->job.n_samples > SAMPLES_MAX - (unasked - UNREAD_MAX) - 2);
}

/* ---- statistics ---- */

static void let_statistic_end(unsigned number)
{
    gate_pass_one(STANDIN_GATE_kernel);
    while (!jobs[number].done)
        backend->poll(device);
}

HELD(test_statistics_wait_for_a_pause)
{
    for (unsigned i = 0; i < BACKLOG; i++)
        begin_job(i, custom.stream, TIMING_STATISTIC);
    for (unsigned i = 0; i < BACKLOG - 1; i++) {
        let_statistic_end(i);
        poll_some();
        assert_int_equal(flushes, i); /* none for the first, which is young */
        pass_time(60 * MS);
    }
    assert_int_equal(told.count, 0);
    let_statistic_end(BACKLOG - 1);
    backend->arm(device);
    assert_int_equal(told.count, BACKLOG);
}

HELD(test_statistics_do_not_wait_for_ever)
{
    for (unsigned i = 0; i < 3; i++)
        begin_job(i, custom.stream, TIMING_STATISTIC);
    let_statistic_end(0);
    pass_time(2001ULL * MS);
    let_statistic_end(1);
    poll_some();
    let_statistic_end(2);
    backend->arm(device);
    assert_int_equal(told.count, 2);
}

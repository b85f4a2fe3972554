/* How executions are timed: by the kernels themselves where they can tell, by events where not. */
#include "kernel_support.h"

#include <stdlib.h>

#include "util/clock.h"

enum { N = 1000, REPEAT = 40 /* more than are in flight */, SECOND_US = 1000000 };

static void expect_times(const struct test_job *t, bool by_events)
{
    assert_int_equal(t->job.n_samples, t->job.repeat);
    for (unsigned i = 0; i < t->job.n_samples; i++)
        assert_true(t->samples[i] > 0 && t->samples[i] < SECOND_US);
    assert_int_equal(t->job.timer, by_events ? TIMER_EVENTS : TIMER_KERNEL);
}

static void square(bool by_events)
{
    struct backend_memory *m = device_memory(N * sizeof(float));
    struct test_job t;

    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
    t.job.warmup = 2;
    t.job.repeat = REPEAT;
    run_job(stream_open(), &t);
    expect_times(&t, by_events);
}

static void test_our_kernels_tell_their_own_times(void **state)
{
    square(false);
}

static void test_a_clock_of_long_steps_is_not_used(void **state)
{
    square(true);
}

/* A kernel of a user's, REPEAT times. */
static void custom(struct test_job *t)
{
    struct backend_memory *m = device_memory(N * sizeof(float));

    KERNEL_JOB(t, load_function(load_code(), "custom_kernel"), N, OUT(m, N), IN(m, N), INT(N));
    t->job.repeat = REPEAT;
    run_job(stream_open(), t);
    expect_times(t, true);
}

/* The GPU waits until the execution and its events are on the stream, so that they tell when it began too. */
static void test_single_executions_wait_behind_a_gate(void **state)
{
    struct backend_memory *m = device_memory(N * sizeof(float));
    struct backend_stream *stream = stream_open();
    const int64_t before = counter(STANDIN_COUNTER_stream_gates);
    struct test_job t;
    int runs = 0;

    KERNEL_JOB(&t, load_function(load_code(), "custom_kernel"), N, OUT(m, N), IN(m, N), INT(N));
    do { /* where the host is interrupted for 100 us meanwhile, the gate has opened by itself and tells nothing */
        t.done = false;
        run_job(stream, &t);
        assert_int_equal(counter(STANDIN_COUNTER_stream_gates), before + ++runs);
        assert_int_equal(t.job.timer, TIMER_EVENTS);
    } while (!t.job.gpu_begin_ns && runs < 100);
    assert_in_range(t.job.gpu_begin_ns, t.job.started_ns, t.job.gpu_end_ns);
    assert_in_range(t.job.gpu_end_ns, t.job.gpu_begin_ns + 1, clock_now_ns());
    t.job.timing = TIMING_NONE;
    t.done = false;
    run_job(stream, &t);
    assert_int_equal(counter(STANDIN_COUNTER_stream_gates), before + runs);
}

static void test_users_kernels_lie_between_events(void **state)
{
    struct test_job t;

    custom(&t);
}

/* Events say a second too much of each execution, which was found out when the context was opened. */
static void test_what_events_add_is_taken_off(void **state)
{
    struct test_job t;

    custom(&t);
    for (unsigned i = 0; i < REPEAT; i++)
        assert_true(t.samples[i] < SECOND_US / 2);
}

/* Where kernels cannot tell their times nobody knows what events add. */
static void test_events_are_believed_where_the_clock_is_coarse(void **state)
{
    struct backend_memory *m = device_memory(N * sizeof(float));
    struct test_job t;

    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
    t.job.repeat = 1;
    run_job(stream_open(), &t);
    assert_int_equal(t.job.n_samples, 1);
    assert_true(t.samples[0] >= SECOND_US);
}

/* The clock could not be tried out: what was launched for it has ended before its memory goes. */
static void test_a_device_whose_clock_cannot_be_tried_out_works(void **state)
{
    assert_true(counter(STANDIN_COUNTER_faults) > 0);
    square(true);
    assert_int_equal(counter(STANDIN_COUNTER_misuse), 0);
    assert_int_equal(counter(STANDIN_COUNTER_sticky), 0);
}

static int setup_with_a_launch_that_fails(void **state)
{
    inject_later("cuLaunchKernel", 3, 701 /* launch out of resources */, false);
    return setup(state);
}

int main(void)
{
    const struct CMUnitTest fine[] = {
        cmocka_unit_test_teardown(test_our_kernels_tell_their_own_times, end_test),
        cmocka_unit_test_teardown(test_users_kernels_lie_between_events, end_test),
        cmocka_unit_test_teardown(test_single_executions_wait_behind_a_gate, end_test),
    };
    const struct CMUnitTest coarse[] = {cmocka_unit_test_teardown(test_a_clock_of_long_steps_is_not_used, end_test)};
    const struct CMUnitTest failing[] = {
        cmocka_unit_test_teardown(test_a_device_whose_clock_cannot_be_tried_out_works, end_test)};
    const struct CMUnitTest late[] = {cmocka_unit_test_teardown(test_what_events_add_is_taken_off, end_test)};
    const struct CMUnitTest late_and_coarse[] = {
        cmocka_unit_test_teardown(test_events_are_believed_where_the_clock_is_coarse, end_test)};
    int failed = cmocka_run_group_tests(fine, setup, teardown);

    failed += cmocka_run_group_tests(failing, setup_with_a_launch_that_fails, teardown);
    setenv("KOPS_STANDIN_CLOCK_STEP", "1024", 1);
    failed += cmocka_run_group_tests(coarse, setup, teardown);
    setenv("KOPS_STANDIN_EVENT_US", "1000000", 1);
    failed += cmocka_run_group_tests(late_and_coarse, setup, teardown);
    unsetenv("KOPS_STANDIN_CLOCK_STEP");
    failed += cmocka_run_group_tests(late, setup, teardown);
    return failed;
}

/* How executions are timed: by the kernels themselves where they can tell, by events where not. Single ones that wait
 * behind a gate: functional_exact_times. */
#include "support.h"

enum { N = 1000, REPEAT = 40 /* more than are in flight */, SECOND_US = 1000000 };

/* Steps of the GPU's clock in ns, and how much too long events say that executions take; NULL: as it is. */
static void open_with(const char *step, const char *event_us)
{
    step ? setenv("KOPS_STANDIN_CLOCK_STEP", step, 1) : unsetenv("KOPS_STANDIN_CLOCK_STEP");
    event_us ? setenv("KOPS_STANDIN_EVENT_US", event_us, 1) : unsetenv("KOPS_STANDIN_EVENT_US");
    setup(NULL);
}

static int end_and_close(void **state)
{
    return end_test(state) + teardown(state);
}

#define TIMED(name) TEST_WITH(name, NULL, end_and_close)

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

TIMED(test_our_kernels_tell_their_own_times)
{
    open_with(NULL, NULL);
    square(false);
}

TIMED(test_a_clock_of_long_steps_is_not_used)
{
    open_with("1024", NULL);
    square(true);
}

/* Events may say a second too much of each execution, which was found out when the context was opened. */
TIMED(test_users_kernels_lie_between_events)
{
    static const char *const too_much_us[] = {NULL, "1000000"};

    for (unsigned late = 0; late < 2; late++) {
        struct backend_memory *m;
        struct test_job t;

        open_with(NULL, too_much_us[late]);
        m = device_memory(N * sizeof(float));
        KERNEL_JOB(&t, load_function(load_code(), "custom_kernel"), N, OUT(m, N), IN(m, N), INT(N));
        t.job.repeat = REPEAT;
        run_job(stream_open(), &t);
        expect_times(&t, true);
        for (unsigned i = 0; i < REPEAT; i++)
            assert_true(t.samples[i] < SECOND_US / 2);
        if (!late)
            end_and_close(NULL);
    }
}

/* Where kernels cannot tell their times nobody knows what events add. */
TIMED(test_events_are_believed_where_the_clock_is_coarse)
{
    struct backend_memory *m;
    struct test_job t;

    open_with("1024", "1000000");
    m = device_memory(N * sizeof(float));
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
    t.job.repeat = 1;
    run_job(stream_open(), &t);
    assert_int_equal(t.job.n_samples, 1);
    assert_true(t.samples[0] >= SECOND_US);
}

/* The clock could not be tried out: what was launched for it has ended before its memory goes. */
TIMED(test_a_device_whose_clock_cannot_be_tried_out_works)
{
    inject_later("cuLaunchKernel", 3, 701 /* launch out of resources */, false);
    open_with(NULL, NULL);
    assert_true(counter(STANDIN_COUNTER_faults) > 0);
    square(true);
    assert_int_equal(counter(STANDIN_COUNTER_sticky), 0);
}

/* Jobs in order, repeated, cancelled, side by side; the loop asleep while they run. */
#include "support.h"

#include <sched.h>
#include <stdio.h>

enum { N = 1000 };

CUDA_TEST(test_few_executions_are_ahead_and_cancel_stops_the_rest)
{
    struct backend_memory *a = device_memory(N * sizeof(float)), *out = device_memory(N * sizeof(float));
    int64_t launches = counter(STANDIN_COUNTER_launches);
    struct backend_stream *stream = stream_open();
    struct test_job t, next;

    gate_close(STANDIN_GATE_kernel);
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(out, N)});
    make_job(&next, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(out, N)});
    t.job.repeat = SAMPLES_MAX;
    start_job(stream, &t);
    start_job(stream, &next);
    assert_int_equal(backend->poll(device), 2);
    assert_in_range(counter(STANDIN_COUNTER_launches) - launches, 2, 32);

    atomic_store(&t.job.cancel, true);
    gate_open(STANDIN_GATE_kernel);
    finish(&t);
    assert_true(t.job.failed);
    assert_int_equal(t.job.error.code, ERROR_CANCELLED);
    finish(&next);
    assert_false(next.job.failed);
    assert_in_range(counter(STANDIN_COUNTER_launches) - launches, 3, 64);
}

static unsigned thread_count(void)
{
    FILE *status = fopen("/proc/self/status", "re");
    unsigned count = 0;
    char line[128];

    assert_non_null(status);
    while (fgets(line, sizeof(line), status))
        if (sscanf(line, "Threads: %u", &count) == 1)
            break;
    fclose(status);
    return count;
}

CUDA_TEST(test_a_waiting_loop_asks_the_driver_nothing)
{
    struct backend_memory *m = device_memory(N * sizeof(float));
    uint64_t queries;
    unsigned threads;
    struct test_job t;

    gate_close(STANDIN_GATE_kernel);
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
    start_job(stream_open(), &t);
    wait_at_gate(STANDIN_GATE_kernel, 1);
    assert_int_equal(backend->poll(device), 1);
    backend->arm(device);
    threads = thread_count();
    for (unsigned i = 0; i < 20; i++)
        backend->arm(device); /* one wait is enough */
    assert_int_equal(thread_count(), threads);
    queries = calls("cuEventQuery");
    while (calls("cuEventSynchronize") == 0)
        sched_yield();
    gate_open(STANDIN_GATE_kernel);
    wait_for_wake();
    assert_int_equal(calls("cuEventQuery"), queries);
    finish(&t);
}

CUDA_TEST(test_steady_jobs_make_no_events)
{
    struct backend_memory *m = device_memory(N * sizeof(float));
    struct backend_stream *stream = stream_open();
    int64_t events;
    struct test_job t;

    for (unsigned i = 0; i < 50; i++) {
        make_job(&t, OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
        run_job(stream, &t);
        if (i == 10)
            events = counter(STANDIN_COUNTER_events);
    }
    assert_int_equal(counter(STANDIN_COUNTER_events), events);
}

CUDA_TEST(test_no_driver_is_no_error)
{
    static const char *const drivers[] = {"none", "/nonexistent/libcuda.so.1"};
    struct backend_host host = {0};
    struct backend_device *none;

    for (unsigned i = 0; i < 2; i++) {
        struct backend_config config = {.cuda_driver = drivers[i]};
        unsigned count = 7;

        MUST(backend->open(&config, &host, &none, 1, &count, &e));
        assert_int_equal(count, 0);
    }
}

ALL_TESTS_WITH(setup, teardown)

/* Jobs in order, repeated, cancelled, side by side; the loop asleep while they run. */
#include "support.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { N = 1000 };

static void test_streams_keep_the_order_sent(void **state)
{
    struct backend_memory *m = device_memory(N * sizeof(float));
    struct backend_stream *stream = stream_open();
    struct test_job jobs[3];
    struct error e;

    (void)state;
    fill(m, N, 1);
    /* m = m + m, m = m · m, m = m + m: any other order has another result. */
    for (unsigned i = 0; i < 3; i++) {
        if (i == 1)
            make_job(&jobs[i], OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
        else
            make_job(&jobs[i], OP_ADD, (struct view[]){VECTOR(m, N), VECTOR(m, N), VECTOR(m, N)});
        assert_true(start(stream, &jobs[i], &e));
    }
    finish(&jobs[2]);
    for (unsigned i = 0; i < N; i++) {
        float twice = 2 * value(i, 1);

        assert_true(floats(m)[i] == 2 * twice * twice);
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_false(jobs[i].job.failed);
        assert_int_equal(jobs[i].order, jobs[0].order + i);
        assert_string_equal(jobs[i].step.variant_used, "vector");
        assert_true(jobs[i].job.started_ns > 0);
        assert_int_equal(jobs[i].job.n_samples, 1);
        assert_true(jobs[i].samples[0] > 0);
        assert_true(isnan(jobs[i].job.h2d_us) && isnan(jobs[i].job.d2h_us));
    }
    backend->stream_free(stream);
    close_memory(m);
}

static void test_repeats_are_timed_one_by_one(void **state)
{
    struct backend_memory *a = device_memory(N * sizeof(float)), *out = device_memory(N * sizeof(float));
    int64_t launches = counter(STANDIN_COUNTER_launches);
    struct backend_stream *stream = stream_open();
    struct test_job t;

    (void)state;
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(out, N)});
    t.job.warmup = 3;
    t.job.repeat = 100;
    run_job(stream, &t);
    assert_int_equal(t.job.n_samples, 100);
    for (unsigned i = 0; i < 100; i++)
        assert_true(t.samples[i] > 0);
    assert_int_equal(counter(STANDIN_COUNTER_launches) - launches, 103);
    backend->stream_free(stream);
    close_memory(a);
    close_memory(out);
}

static void test_few_executions_are_ahead_and_cancel_stops_the_rest(void **state)
{
    struct backend_memory *a = device_memory(N * sizeof(float)), *out = device_memory(N * sizeof(float));
    int64_t launches = counter(STANDIN_COUNTER_launches);
    struct backend_stream *stream = stream_open();
    struct test_job t, next;
    struct error e;

    (void)state;
    gate_close(STANDIN_GATE_kernel);
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(out, N)});
    make_job(&next, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(out, N)});
    t.job.repeat = SAMPLES_MAX;
    assert_true(start(stream, &t, &e));
    assert_true(start(stream, &next, &e));
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
    backend->stream_free(stream);
    close_memory(a);
    close_memory(out);
}

static void test_a_cancelled_job_in_the_queue_never_runs(void **state)
{
    struct backend_memory *a = device_memory(N * sizeof(float)), *out = device_memory(N * sizeof(float));
    struct backend_stream *stream = stream_open();
    struct test_job first, second;
    struct error e;

    (void)state;
    fill(a, N, 5);
    make_job(&first, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(a, N)});
    make_job(&second, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(out, N)});
    atomic_store(&second.job.cancel, true);
    assert_true(start(stream, &first, &e));
    assert_true(start(stream, &second, &e));
    finish(&second);
    assert_true(first.done && !first.job.failed);
    assert_int_equal(second.job.error.code, ERROR_CANCELLED);
    assert_int_equal(second.job.started_ns, 0);
    for (unsigned i = 0; i < N; i++)
        assert_true(floats(out)[i] == 0.0f);
    backend->stream_free(stream);
    close_memory(a);
    close_memory(out);
}

static void test_streams_overlap_and_each_end_wakes_the_loop(void **state)
{
    struct backend_memory *m[2] = {device_memory(N * sizeof(float)), device_memory(N * sizeof(float))};
    struct backend_stream *streams[2] = {stream_open(), stream_open()};
    struct test_job jobs[2];
    struct error e;

    (void)state;
    gate_close(STANDIN_GATE_kernel);
    for (unsigned i = 0; i < 2; i++) {
        make_job(&jobs[i], OP_SQUARE, (struct view[]){VECTOR(m[i], N), VECTOR(m[i], N)});
        assert_true(start(streams[i], &jobs[i], &e));
    }
    wait_at_gate(STANDIN_GATE_kernel, 2); /* both are on the device */
    assert_int_equal(backend->poll(device), 2);
    backend->arm(device);
    assert_false(was_woken());

    /* Whichever goes first, the other one's waiting must not hide its end. */
    gate_pass_one(STANDIN_GATE_kernel);
    wait_for_wake();
    while (backend->poll(device) == 2) {
        backend->arm(device);
        wait_for_wake();
    }
    assert_int_not_equal(jobs[0].done, jobs[1].done);
    gate_open(STANDIN_GATE_kernel);
    finish(&jobs[0]);
    finish(&jobs[1]);
    for (unsigned i = 0; i < 2; i++) {
        backend->stream_free(streams[i]);
        close_memory(m[i]);
    }
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

static void test_a_waiting_loop_asks_the_driver_nothing(void **state)
{
    struct backend_memory *m = device_memory(N * sizeof(float));
    struct backend_stream *stream = stream_open();
    uint64_t queries;
    unsigned threads;
    struct test_job t;
    struct error e;

    (void)state;
    gate_close(STANDIN_GATE_kernel);
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
    assert_true(start(stream, &t, &e));
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
    backend->stream_free(stream);
    close_memory(m);
}

static void test_without_timing_nothing_is_measured(void **state)
{
    struct backend_memory *m = device_memory(N * sizeof(float));
    struct backend_stream *stream = stream_open();
    uint64_t measured = calls("cuEventElapsedTime");
    struct test_job t;

    (void)state;
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
    t.job.timing = false;
    run_job(stream, &t);
    assert_int_equal(t.job.n_samples, 0);
    assert_int_equal(calls("cuEventElapsedTime"), measured);
    backend->stream_free(stream);
    close_memory(m);
}

static void test_steady_jobs_make_no_events(void **state)
{
    struct backend_memory *m = device_memory(N * sizeof(float));
    struct backend_stream *stream = stream_open();
    int64_t events;
    struct test_job t;

    (void)state;
    for (unsigned i = 0; i < 50; i++) {
        make_job(&t, OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
        run_job(stream, &t);
        if (i == 10)
            events = counter(STANDIN_COUNTER_events);
    }
    assert_int_equal(counter(STANDIN_COUNTER_events), events);
    backend->stream_free(stream);
    close_memory(m);
}

static void test_an_empty_tensor_needs_no_kernel(void **state)
{
    int64_t launches = counter(STANDIN_COUNTER_launches);
    struct backend_stream *stream = stream_open();
    struct test_job t;

    (void)state;
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(NULL, 0), VECTOR(NULL, 0)});
    run_job(stream, &t);
    assert_int_equal(t.job.n_samples, 0);
    assert_non_null(t.step.variant_used);
    assert_int_equal(counter(STANDIN_COUNTER_launches), launches);
    backend->stream_free(stream);
}

static void test_a_forced_variant_is_used_or_refused(void **state)
{
    struct backend_memory *a = device_memory(N * sizeof(float)), *out = device_memory(N * sizeof(float));
    struct backend_stream *stream = stream_open();
    struct test_job t;
    struct error e;

    (void)state;
    fill(a, N, 7);
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(a, N), VECTOR(out, N)});
    step_copy_variant(t.step.variant, "strided");
    assert_int_equal(backend->check(device, &t.step, &e), 0);
    run_job(stream, &t);
    assert_string_equal(t.step.variant_used, "strided");
    for (unsigned i = 0; i < N; i++)
        assert_true(floats(out)[i] == value(i, 7) * value(i, 7));

    /* This one needs contiguous tensors. */
    make_job(&t, OP_SQUARE,
             (struct view[]){{.memory = a, .rank = 1, .shape = {N / 2}, .strides = {2}, .strided = true},
                             VECTOR(out, N / 2)});
    step_copy_variant(t.step.variant, "vector");
    assert_int_equal(backend->check(device, &t.step, &e), -1);
    assert_int_equal(e.code, ERROR_INVALID_ARGUMENT);
    step_copy_variant(t.step.variant, "strided");
    assert_int_equal(backend->check(device, &t.step, &e), 0);
    backend->stream_free(stream);
    close_memory(a);
    close_memory(out);
}

static void test_a_refused_launch_fails_its_job_only(void **state)
{
    struct backend_memory *m = device_memory(N * sizeof(float));
    struct backend_stream *stream = stream_open();
    struct test_job t;
    struct error e;

    (void)state;
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
    inject("cuLaunchKernel", 1 /* CUDA_ERROR_INVALID_VALUE */, false);
    assert_true(start(stream, &t, &e));
    finish(&t);
    assert_true(t.job.failed);
    assert_int_equal(t.job.error.code, ERROR_DEVICE_ERROR);
    assert_string_equal(t.job.error.details[0].text, "CUDA_ERROR_INVALID_VALUE");
    assert_false(device->lost);
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
    run_job(stream, &t);
    backend->stream_free(stream);
    close_memory(m);
}

static void test_the_device_describes_itself(void **state)
{
    (void)state;
    assert_int_equal(strlen(device->info.uuid), 40);
    assert_memory_equal(device->info.uuid, "GPU-", 4);
    assert_memory_equal(device->info.arch, "sm_", 3);
    assert_true(device->info.compute_units > 0);
    assert_true(device->info.memory_bytes > 0);
    assert_ptr_equal(device->backend, &cuda_backend);
}

static void test_no_driver_is_no_error(void **state)
{
    static const char *const drivers[] = {"none", "/nonexistent/libcuda.so.1"};
    struct backend_host host = {0};
    struct backend_device *none;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct backend_config config = {.cuda_driver = drivers[i]};
        unsigned count = 7;
        struct error e;

        assert_int_equal(backend->open(&config, &host, &none, 1, &count, &e), 0);
        assert_int_equal(count, 0);
    }
}

static void test_nothing_was_misused_or_left(void **state)
{
    (void)state;
    assert_int_equal(counter(STANDIN_COUNTER_misuse), 0);
    assert_int_equal(counter(STANDIN_COUNTER_live_vmm_maps), 0);
    assert_int_equal(counter(STANDIN_COUNTER_live_vmm_handles), 0);
    assert_int_equal(counter(STANDIN_COUNTER_live_allocations), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_device_describes_itself),
        cmocka_unit_test(test_no_driver_is_no_error),
        cmocka_unit_test(test_streams_keep_the_order_sent),
        cmocka_unit_test(test_repeats_are_timed_one_by_one),
        cmocka_unit_test(test_few_executions_are_ahead_and_cancel_stops_the_rest),
        cmocka_unit_test(test_a_cancelled_job_in_the_queue_never_runs),
        cmocka_unit_test(test_streams_overlap_and_each_end_wakes_the_loop),
        cmocka_unit_test(test_a_waiting_loop_asks_the_driver_nothing),
        cmocka_unit_test(test_without_timing_nothing_is_measured),
        cmocka_unit_test(test_steady_jobs_make_no_events),
        cmocka_unit_test(test_an_empty_tensor_needs_no_kernel),
        cmocka_unit_test(test_a_forced_variant_is_used_or_refused),
        cmocka_unit_test(test_a_refused_launch_fails_its_job_only),
        cmocka_unit_test(test_nothing_was_misused_or_left),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}

/* Jobs in order, repeated, cancelled; the loop asleep while they run; memory that the driver does not give. */
#include "support.h"

#include <sched.h>

enum { N = 1000, BYTES = N * sizeof(float), OUT_OF_MEMORY = 2, UNKNOWN = 999 };

CUDA_TEST(test_few_executions_are_ahead_and_cancel_stops_the_rest)
{
    struct backend_memory *a = device_memory(BYTES), *out = device_memory(BYTES);
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

CUDA_TEST(test_a_waiting_loop_asks_the_driver_nothing)
{
    struct backend_memory *m = device_memory(BYTES);
    uint64_t queries;
    struct test_job t;

    gate_close(STANDIN_GATE_kernel);
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
    start_job(stream_open(), &t);
    wait_at_gate(STANDIN_GATE_kernel, 1);
    assert_int_equal(backend->poll(device), 1);
    for (unsigned i = 0; i < 20; i++) /* one wait is enough */
        backend->arm(device);
    queries = calls("cuEventQuery");
    while (calls("cuEventSynchronize") == 0)
        sched_yield();
    gate_open(STANDIN_GATE_kernel);
    wait_for_wake();
    assert_int_equal(calls("cuEventQuery"), queries);
    assert_in_range(calls("cuEventSynchronize"), 1, 2);
    finish(&t);
}

CUDA_TEST(test_steady_jobs_make_no_events)
{
    struct backend_memory *m = device_memory(BYTES);
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

/* ---- memory ---- */

CUDA_TEST(test_a_driver_that_only_says_unknown_is_not_lost)
{
    struct backend_import what = {.kind = MEMORY_CUDA_IPC, .size = BYTES};
    struct backend_memory *m;

    inject("cuIpcOpenMemHandle", UNKNOWN, false);
    MUST_FAIL(backend->memory_import(device, &what, &m, &e), ERROR_INVALID_HANDLE, "freed");
    assert_false(device->lost);
}

CUDA_TEST(test_a_failing_allocation_leaks_nothing)
{
    static const char *const steps[] = {"cuMemGetAllocationGranularity",
                                        "cuMemCreate",
                                        "cuMemAddressReserve",
                                        "cuMemMap",
                                        "cuMemSetAccess",
                                        "cuMemsetD8Async",
                                        "cuMemExportToShareableHandle"};
    struct backend_memory *m;
    int fd;

    for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        inject(steps[i], OUT_OF_MEMORY, false);
        MUST_FAIL(backend->memory_alloc(device, BYTES, &m, &fd, &e), ERROR_OUT_OF_MEMORY, "");
        expect_memory_as_at_begin();
    }
    MUST_FAIL(backend->memory_alloc(device, UINT64_MAX, &m, &fd, &e), ERROR_OUT_OF_MEMORY, "");
}

ALL_TESTS_WITH(setup, teardown)

/* A kernel that never ends: noticed, its jobs ended, everything taken down without waiting for it. */
#include "kernel_support.h"

#include <sched.h>
#include <unistd.h>

enum { N = 1000, BYTES = N * sizeof(float) };

/* What a thread does that was just told to sleep. */
static bool by_a_waiter(const char *function)
{
    return !strcmp(function, "cuCtxSetCurrent") || !strcmp(function, "cuEventSynchronize");
}

/* Of this process, but for those. */
static uint64_t all_calls(void)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < STANDIN_ROWS; i++)
        if (control->rows[i].pid == getpid())
            for (unsigned j = 0; j < STANDIN_CALLS; j++)
                if (!by_a_waiter(control->rows[i].calls[j].function))
                    sum += control->rows[i].calls[j].count;
    return sum;
}

CUDA_TEST(test_a_device_is_left_behind_with_its_endless_kernel)
{
    struct backend_memory *m = device_memory(BYTES), *host = host_memory(BYTES);
    struct backend_stream *stuck = stream_open(), *busy = stream_open(), *another;
    struct backend_code *code = load_code();
    const struct backend_function *spin = load_function(code, "spin_forever"),
                                  *doubled = load_function(code, "custom_kernel");
    struct test_job endless, behind, beside;
    struct error why, e;
    uint64_t calls_before;

    KERNEL_JOB(&endless, spin, 1, OUT(m, 1));
    KERNEL_JOB(&behind, doubled, N, OUT(m, N), IN(m, N), INT(N));
    start_job(stuck, &endless);
    backend->arm(device);
    while (calls("cuEventSynchronize") == 0) /* a thread is in the driver from here on */
        sched_yield();
    start_job(stuck, &behind);

    /* Other work goes on, as the executions that have ended tell. */
    for (unsigned i = 0; i < 3; i++) {
        KERNEL_JOB(&beside, doubled, N, OUT(host, N), IN(host, N), INT(N));
        run_job(busy, &beside);
    }
    assert_int_equal(endless.job.ended, 0);
    assert_int_equal(beside.job.ended, 1);

    error_set(&why, ERROR_JOB_TIMEOUT, "it ran too long");
    calls_before = all_calls();
    backend->abandon(device, &why);
    finish(&behind);
    assert_true(endless.done && endless.job.failed && behind.job.failed);
    assert_int_equal(endless.job.error.code, ERROR_JOB_TIMEOUT);
    assert_int_equal(behind.job.error.code, ERROR_JOB_TIMEOUT);
    assert_true(endless.order < behind.order);
    assert_true(device->lost);
    assert_int_equal(backend->poll(device), 0);

    /* What comes now is told that the device is lost, and nothing waits. */
    KERNEL_JOB(&beside, doubled, N, OUT(m, N), IN(m, N), INT(N));
    backend->submit(busy, &beside.job);
    finish(&beside);
    assert_int_equal(beside.job.error.code, ERROR_DEVICE_LOST);
    assert_int_equal(backend->stream_new(device, PRIORITY_HIGH, &another, &e), -1);
    assert_int_equal(e.code, ERROR_DEVICE_LOST);
    assert_int_equal(all_calls(), calls_before);
}

ALL_TESTS_WITH(setup, teardown)

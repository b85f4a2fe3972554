/* Two devices of one process, which are described without a context and become active later, one by one. */
#include "support.h"

#include <pthread.h>

#include "backend/backend.h"

enum { N = 1000, BYTES = N * sizeof(float), FAILURES_MAX = 400, OUT_OF_MEMORY = 2 };

static struct backend_device *devices[2];

static int two_devices(void **state)
{
    return setenv("KOPS_STANDIN_DEVICES", "2", 1);
}

static void describe(void)
{
    describe_devices("none", devices, 2);
}

static void close_all(void)
{
    for (unsigned i = 0; i < 2; i++)
        backend->close(devices[i]);
    expect_nothing_lives();
}

static void run_a_job_on(struct backend_device *d)
{
    struct backend_stream *stream;
    struct backend_memory *m;
    struct test_job t;

    device = d;
    stream = stream_open();
    m = device_memory(BYTES);
    fill(m, N, 1);
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
    run_job(stream, &t);
    for (unsigned k = 0; k < N; k++)
        assert_true(floats(m)[k] == value(k, 1) * value(k, 1));
    close_opened(NULL);
}

static void *activate(void *argument)
{
    struct backend_device *d = argument;
    struct error e;

    return cuda_backend.activate(d, &e) < 0 ? NULL : d;
}

TEST(test_only_an_active_device_has_a_context)
{
    struct kernel_limits limits;
    pthread_t thread;
    void *active;

    describe();
    backend->kernel_limits(devices[0], &limits);
    assert_int_equal(limits.max_threads, 1024);
    assert_true(backend->can_access(devices[0], devices[1]));
    assert_int_equal(counter(STANDIN_COUNTER_contexts), 0);
    /* Any thread can make a device active. */
    assert_int_equal(pthread_create(&thread, NULL, activate, devices[1]), 0);
    assert_int_equal(pthread_join(thread, &active), 0);
    assert_ptr_equal(active, devices[1]);
    assert_int_equal(counter(STANDIN_COUNTER_live_contexts), 1);
    run_a_job_on(devices[1]);
    close_all();
}

TEST(test_host_memory_is_pinned_once_for_both)
{
    struct backend_memory *m;

    describe();
    m = host_memory(BYTES);
    fill(m, N, 1);
    for (unsigned i = 0; i < 2; i++) {
        struct test_job t;

        device = devices[i];
        MUST(cuda_backend.activate(device, &e));
        make_job(&t, OP_ADD, (struct view[]){VECTOR(m, N), VECTOR(m, N), VECTOR(m, N)});
        run_job(stream_open(), &t);
    }
    for (unsigned k = 0; k < N; k++)
        assert_true(floats(m)[k] == 4 * value(k, 1));
    assert_int_equal(counter(STANDIN_COUNTER_host_registrations), 1);
    for (unsigned i = 0; i < 3; i++) { /* the second device keeps it; the first one gives it back twice */
        assert_int_equal(counter(STANDIN_COUNTER_live_host_registrations), 1);
        backend->memory_detach(devices[i / 2], m);
    }
    assert_int_equal(counter(STANDIN_COUNTER_live_host_registrations), 0);
    close_opened(NULL);
    close_all();
}

/* Every call of the driver that activate() makes fails once. */
TEST(test_after_a_failure_the_device_is_as_it_was)
{
    static const char *const functions[] = {
        "cuDevicePrimaryCtxRetain",    "cuCtxSetCurrent",  "cuStreamCreate", "cuMemPoolCreate",
        "cuMemPoolSetAttribute",       "cuModuleLoadData", "cuFuncLoad",     "cuModuleGetFunction",
        "cuCtxGetStreamPriorityRange", "cuMemHostAlloc",
    };
    struct error e;

    for (unsigned f = 0; f < sizeof(functions) / sizeof(*functions); f++) {
        unsigned failures = 0;

        describe();
        for (;; failures++) {
            int64_t fired = counter(STANDIN_COUNTER_faults);

            assert_true(failures < FAILURES_MAX);
            inject_later(functions[f], failures + 1, OUT_OF_MEMORY, false);
            if (cuda_backend.activate(devices[0], &e) == 0)
                break;
            assert_int_equal(counter(STANDIN_COUNTER_faults), fired + 1);
            assert_int_equal(e.code, ERROR_OUT_OF_MEMORY);
            expect_nothing_lives();
        }
        control->faults[0].armed = 0; /* there are no more of these calls */
        if (failures == 0)
            fail_msg("activate() does not call %s", functions[f]);
        run_a_job_on(devices[0]);
        close_all();
    }
}

ALL_TESTS_WITH(two_devices, NULL)

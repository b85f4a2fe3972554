/* Two GPUs in one daemon. */
#include "kernel_support.h"

enum { N = 1000, BYTES = N * sizeof(float) };

static struct backend_device *devices[2];

static int open_both(void **state)
{
    setenv("KOPS_STANDIN_DEVICES", "2", 1);
    open_devices("none", devices, 2);
    device = devices[0];
    return 0;
}

static int close_both(void **state)
{
    backend->close(devices[1]);
    device = devices[0];
    return teardown(state);
}

CUDA_TEST(test_host_memory_is_pinned_once_for_both)
{
    struct backend_memory *m = host_memory(BYTES);

    fill(m, N, 1);
    for (unsigned i = 0; i < 2; i++) {
        struct backend_stream *stream;
        struct test_job t;

        device = devices[i];
        stream = stream_open();
        make_job(&t, OP_ADD, (struct view[]){VECTOR(m, N), VECTOR(m, N), VECTOR(m, N)});
        run_job(stream, &t);
    }
    for (unsigned k = 0; k < N; k++)
        assert_true(floats(m)[k] == 4 * value(k, 1));
    assert_int_equal(counter(STANDIN_COUNTER_host_registrations), 1);
    backend->memory_detach(devices[0], m);
    assert_int_equal(counter(STANDIN_COUNTER_live_host_registrations), 1); /* the other one's still */
    backend->memory_detach(devices[0], m);
    assert_int_equal(counter(STANDIN_COUNTER_live_host_registrations), 1);
    backend->memory_detach(devices[1], m);
    assert_int_equal(counter(STANDIN_COUNTER_live_host_registrations), 0);
}

CUDA_TEST(test_a_handle_of_the_other_gpu_is_refused)
{
    struct backend_import what = {.kind = MEMORY_CUDA_IPC, .size = BYTES};
    struct backend_memory *m;

    exporter_alloc(BYTES, 1, what.handle); /* on the first */
    MUST_FAIL(backend->memory_import(devices[1], &what, &m, &e), ERROR_INVALID_HANDLE, "");
    assert_int_equal(counter(STANDIN_COUNTER_live_ipc_mappings), 0);
    MUST(backend->memory_import(devices[0], &what, &m, &e));
    backend->memory_close(m);
    assert_int_equal(counter(STANDIN_COUNTER_live_ipc_mappings), 0);
}

CUDA_TEST(test_a_kernel_of_a_user_takes_memory_of_the_other_gpu)
{
    const struct backend_function *doubled;
    struct backend_memory *there, *here;
    struct backend_stream *stream;
    struct backend_code *code;
    struct test_job t;

    device = devices[0];
    there = device_memory(BYTES);
    fill(there, N, 2);
    device = devices[1];
    here = device_memory(BYTES);
    code = load_code();
    doubled = load_function(code, "custom_kernel");
    stream = stream_open();
    KERNEL_JOB(&t, doubled, N, OUT(here, N), IN(there, N), INT(N));
    assert_true(needs_prepare(&t));
    run_job(stream, &t);
    for (unsigned k = 0; k < N; k++)
        assert_true(floats(here)[k] == 2 * value(k, 2));
    assert_false(needs_prepare(&t));
}

ALL_TESTS_WITH(open_both, close_both)

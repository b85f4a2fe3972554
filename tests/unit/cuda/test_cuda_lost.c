/* A sticky fault: what is in flight fails, what comes after fails, and taking everything down still works. */
#include "kernel_support.h"

#include <stdlib.h>
#include <string.h>

enum { N = 1000, BYTES = N * sizeof(float) };

static void expect_lost(const struct error *e)
{
    assert_int_equal(e->code, ERROR_DEVICE_LOST);
    assert_string_equal(e->details[0].key, "driver");
    assert_memory_equal(e->details[0].text, "CUDA_ERROR_", 11);
}

static void test_everything_fails_and_nothing_crashes(void **state)
{
    struct backend_memory *m = device_memory(BYTES), *host = host_memory(BYTES), *other;
    struct backend_stream *streams[2] = {stream_open(), stream_open()}, *another;
    struct backend_import what = {.kind = MEMORY_CUDA_IPC, .size = BYTES};
    struct test_job jobs[6], staged;
    struct backend_code *code = load_code(), *other_code;
    const struct backend_function *fault = load_function(code, "fault_kernel");
    struct backend_function none;
    unsigned char *image;
    struct error e;
    size_t size;
    int fd;

    (void)state;
    exporter_alloc(BYTES, 1, what.handle);
    make_job(&staged, OP_SQUARE, (struct view[]){VECTOR(host, N), VECTOR(host, N)});
    run_job(streams[0], &staged);

    gate_close(STANDIN_GATE_kernel);
    for (unsigned i = 0; i < 6; i++) {
        if (i == 0)
            KERNEL_JOB(&jobs[i], fault, 32, OUT(m, N));
        else
            make_job(&jobs[i], OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
        jobs[i].job.repeat = i == 2 ? 200 : 1;
        assert_true(start(streams[i % 2], &jobs[i], &e));
    }
    assert_int_equal(backend->poll(device), 6);
    backend->arm(device);
    gate_open(STANDIN_GATE_kernel);
    wait_for_wake();
    for (unsigned i = 0; i < 6; i++) {
        finish(&jobs[i]);
        if (jobs[i].job.failed) /* some may have ended before the fault */
            expect_lost(&jobs[i].job.error);
    }
    assert_true(jobs[0].job.failed && jobs[2].job.failed);
    assert_true(device->lost);

    /* A job that comes now. */
    make_job(&jobs[0], OP_SQUARE, (struct view[]){VECTOR(m, N), VECTOR(m, N)});
    backend->submit(streams[0], &jobs[0].job);
    finish(&jobs[0]);
    expect_lost(&jobs[0].job.error);
    assert_int_equal(backend->poll(device), 0);

    /* And every other way in. */
    make_job(&staged, OP_SQUARE, (struct view[]){VECTOR(host, N), VECTOR(host, N)});
    assert_false(start(streams[0], &staged, &e));
    expect_lost(&e);
    assert_int_equal(backend->memory_import(device, &what, &other, &e), -1);
    expect_lost(&e);
    assert_int_equal(backend->memory_alloc(device, BYTES, &other, &fd, &e), -1);
    expect_lost(&e);
    assert_int_equal(backend->stream_new(device, PRIORITY_NORMAL, &another, &e), -1);
    expect_lost(&e);
    image = read_file(KOPS_TEST_CUBIN, &size);
    assert_int_equal(backend->code_load(device, DOMAIN_COMMON, image, size, &other_code, &e), -1);
    expect_lost(&e);
    free(image);
    assert_int_equal(backend->code_function(device, code, "custom_kernel", &none, &e), -1);
    expect_lost(&e);

    backend->code_unload(device, code);
    backend->stream_free(streams[0]);
    backend->stream_free(streams[1]);
    close_memory(m);
    close_memory(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_fails_and_nothing_crashes),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}

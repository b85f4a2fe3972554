/* What streams of the stand-in driver wait for, and the misuse that it reports of them. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test_support.h"

static void default_stream_waits_for_blocking_ones(void)
{
    struct standin_gate *gate = &control->gates[STANDIN_GATE_kernel];
    CUstream blocking, independent;
    CUdeviceptr a;

    ok(cuMemAlloc(&a, 8));
    ok(cuMemsetD32(a, 0, 2));
    ok(cuCtxSynchronize());
    ok(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    ok(cuStreamCreate(&independent, CU_STREAM_NON_BLOCKING));
    gate->closed = 1;
    launch_square(a, 1, blocking);
    ok(cuMemsetD8Async(a + 4, 1, 4, NULL));
    ok(cuMemsetD8Async(a + 4, 1, 4, independent));
    ok(cuStreamSynchronize(independent));
    assert_int_equal(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    gate->closed = 0;
    ok(cuStreamSynchronize(NULL));
    ok(cuStreamQuery(blocking));
}

static void free_during_use_is_misuse(void)
{
    struct standin_gate *gate = &control->gates[STANDIN_GATE_kernel];
    CUstream stream;
    CUdeviceptr a;
    int status;
    pid_t pid;

    ok(cuMemAlloc(&a, 4096));
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    gate->closed = 1;
    launch_square(a, 1024, stream);
    wait_until(&row->gate_waiting[STANDIN_GATE_kernel], 1);
    /* The free waits for the kernel; another process opens the gate once it sees the report. */
    pid = fork();
    if (pid == 0) {
        while (!COUNTER(misuse))
            usleep(1000);
        gate->closed = 0;
        _exit(0);
    }
    ok(cuMemFree(a));
    assert_non_null(strstr(row->last_misuse, "still queued"));
    assert_int_equal(COUNTER(kernels_run), 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

static void pageable_copies_block(void)
{
    float host[4] = {1, 2, 3, 4}, back[4];
    CUstream stream;
    CUdeviceptr a;

    ok(cuMemAlloc(&a, sizeof(host)));
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ok(cuMemcpyHtoDAsync(a, host, sizeof(host), stream));
    ok(cuMemcpyDtoHAsync(back, a, sizeof(host), stream));
    assert_memory_equal(host, back, sizeof(host));
    assert_int_equal(COUNTER(pageable_copies), 2);
    assert_int_equal(cuMemcpyHtoDAsync(a + 4, host, sizeof(host), stream), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(COUNTER(misuse), 1);
}

static void fork_loses_the_driver(void)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        CUdeviceptr a;

        _exit(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED && cuMemAlloc(&a, 64) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static const struct driver_test tests[] = {
    DRIVER_TEST(default_stream_waits_for_blocking_ones),
    DRIVER_TEST(free_during_use_is_misuse),
    DRIVER_TEST(pageable_copies_block),
    DRIVER_TEST(fork_loses_the_driver),
};

int main(int argc, char **argv)
{
    return run_driver_tests(argc, argv, tests, sizeof(tests) / sizeof(*tests));
}

/* The stand-in driver within one process: streams, events, gates, launches, and what breaks a context. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/ops/params.h"
#include "test_support.h"

/* ---- streams and events ---- */

static void gate_holds_one_stream(void)
{
    struct standin_gate *gate = &control->gates[STANDIN_GATE_kernel];
    float three = 3, got;
    CUstream held, free_one;
    CUdeviceptr a;
    CUevent before, after, other;
    float milliseconds;

    ok(cuMemAlloc(&a, 4096));
    ok(cuMemcpyHtoD(a, &three, sizeof(three)));
    ok(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING));
    ok(cuStreamCreate(&free_one, CU_STREAM_NON_BLOCKING));
    ok(cuEventCreate(&before, 0));
    ok(cuEventCreate(&after, 0));
    ok(cuEventCreate(&other, CU_EVENT_DISABLE_TIMING));
    ok(cuEventQuery(before)); /* never recorded: nothing to wait for */
    gate->closed = 1;
    ok(cuEventRecord(before, held));
    launch_square(a, 1, held);
    launch_square(a, 1, held);
    ok(cuEventRecord(after, held));
    wait_until(&row->gate_waiting[STANDIN_GATE_kernel], 1);
    assert_int_equal(cuEventQuery(after), CUDA_ERROR_NOT_READY);
    assert_int_equal(cuEventElapsedTime(&milliseconds, before, after), CUDA_ERROR_NOT_READY);
    assert_int_equal(cuStreamQuery(held), CUDA_ERROR_NOT_READY);
    /* Another stream runs on; one that waits for the event does not. */
    ok(cuEventRecord(other, free_one));
    ok(cuEventSynchronize(other));
    ok(cuStreamWaitEvent(free_one, after, 0));
    ok(cuEventRecord(other, free_one));
    gate->tickets = 1;
    wait_until(&row->gate_passed[STANDIN_GATE_kernel], 1);
    wait_until(&row->gate_waiting[STANDIN_GATE_kernel], 1); /* the second one */
    assert_int_equal(COUNTER(kernels_run), 1);
    assert_int_equal(cuEventQuery(other), CUDA_ERROR_NOT_READY);
    gate->closed = 0;
    ok(cuEventSynchronize(other));
    ok(cuEventQuery(after));
    ok(cuEventElapsedTime(&milliseconds, before, after));
    assert_true(milliseconds > 0);
    assert_int_equal(cuEventElapsedTime(&milliseconds, before, other), CUDA_ERROR_INVALID_HANDLE);
    ok(cuMemcpyDtoH(&got, a, sizeof(got)));
    assert_true(got == 81);
    ok(cuMemFree(a));
    ok(cuEventDestroy(before));
    ok(cuEventDestroy(after));
    ok(cuEventDestroy(other));
    ok(cuStreamDestroy(held));
    ok(cuStreamDestroy(free_one));
    assert_int_equal(COUNTER(live_streams), 0);
    assert_int_equal(COUNTER(live_events), 0);
    assert_int_equal(COUNTER(queued), 0);
}

static void destroyed_stream_goes_on(void)
{
    struct standin_gate *gate = &control->gates[STANDIN_GATE_kernel];
    float three = 3, got;
    CUstream stream;
    CUdeviceptr a;
    CUevent event;

    ok(cuMemAlloc(&a, 4));
    ok(cuMemcpyHtoD(a, &three, sizeof(three)));
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ok(cuEventCreate(&event, 0));
    gate->closed = 1;
    launch_square(a, 1, stream);
    ok(cuEventRecord(event, stream));
    ok(cuStreamDestroy(stream));
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    gate->closed = 0;
    ok(cuEventSynchronize(event));
    ok(cuMemcpyDtoH(&got, a, sizeof(got)));
    assert_true(got == 9);
    assert_int_equal(COUNTER(misuse), 0);
}

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

static void stream_order_frees(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    CUipcMemHandle handle;
    CUstream stream;
    CUdeviceptr a;
    int capable = 1;

    ok(cuMemPoolCreate(&pool, &props));
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ok(cuMemAllocFromPoolAsync(&a, 4096, pool, stream));
    ok(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, a));
    assert_int_equal(capable, 0);
    assert_int_equal(cuIpcGetMemHandle(&handle, a), CUDA_ERROR_INVALID_VALUE);
    launch_square(a, 1024, stream);
    ok(cuMemFreeAsync(a, stream));
    assert_int_equal(cuMemFreeAsync(a, stream), CUDA_ERROR_INVALID_VALUE);
    ok(cuStreamSynchronize(stream));
    assert_int_equal(COUNTER(live_allocations), 0);
    assert_int_equal(COUNTER(misuse), 1);
    ok(cuMemPoolDestroy(pool));
}

enum { THREADS = 4, ROUNDS = 200, COUNT = 256 };

/* One thread's life: everything made, used and destroyed, over and over. Returns NULL when all was right. */
static void *make_and_use(void *context)
{
    float host[COUNT], back[COUNT];
    CUstream stream;
    CUdeviceptr a;
    CUevent event;
    CUresult bad = cuCtxSetCurrent(context);

    for (unsigned round = 0; round < ROUNDS && bad == CUDA_SUCCESS; round++) {
        for (unsigned i = 0; i < COUNT; i++)
            host[i] = (float)(round + i);
        bad |= cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
        bad |= cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
        bad |= cuMemAlloc(&a, sizeof(host));
        bad |= cuMemcpyHtoDAsync(a, host, sizeof(host), stream);
        launch_square(a, COUNT, stream);
        bad |= cuEventRecord(event, stream);
        bad |= cuEventSynchronize(event);
        bad |= cuMemcpyDtoH(back, a, sizeof(back));
        for (unsigned i = 0; i < COUNT; i++)
            if (back[i] != host[i] * host[i])
                bad = CUDA_ERROR_UNKNOWN;
        bad |= cuEventDestroy(event);
        bad |= cuStreamDestroy(stream);
        bad |= cuMemFree(a);
    }
    return bad == CUDA_SUCCESS ? NULL : context;
}

static void threads_at_once(void)
{
    pthread_t threads[THREADS];
    CUcontext context;
    void *bad;

    ok(cuCtxGetCurrent(&context));
    kernel("kops_square_f32_vector");
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, make_and_use, context), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &bad), 0);
        assert_null(bad);
    }
    assert_int_equal(COUNTER(kernels_run), THREADS * ROUNDS);
    assert_int_equal(COUNTER(live_streams) + COUNTER(live_events) + COUNTER(live_allocations), 0);
    assert_int_equal(COUNTER(misuse), 0);
}

/* A free waits for the whole device, unless the switch says otherwise; work that uses the memory is always waited for.
 */
static void free_waits_for_the_device(void)
{
    struct standin_gate *gate = &control->gates[STANDIN_GATE_kernel];
    CUdeviceptr used, unused;
    int64_t waits;
    CUstream stream;

    ok(cuMemAlloc(&used, 64));
    ok(cuMemAlloc(&unused, 64));
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    kernel("kops_square_f32_vector");
    waits = COUNTER(blocking_waits);
    gate->closed = 1;
    launch_square(used, 16, stream);
    wait_until(&row->gate_waiting[STANDIN_GATE_kernel], 1);
    control->no_implicit_sync = 1;
    ok(cuMemFree(unused)); /* would not return */
    assert_int_equal(COUNTER(blocking_waits), waits);
    control->no_implicit_sync = 0;
    gate->closed = 0;
    ok(cuStreamSynchronize(stream));
    assert_int_equal(COUNTER(misuse), 0);
}

/* ---- faults ---- */

static void bad_launches_are_refused(void)
{
    struct cuda_ops_vector p = {0};
    void *params[] = {&p};
    CUfunction f = kernel("kops_add_f32_vector"), other;
    CUmodule module;

    assert_int_equal(cuLaunchKernel(f, 0, 1, 1, 32, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuLaunchKernel(f, 1, 1, 1, 1025, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuLaunchKernel(f, 1, 70000, 1, 32, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 50000, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    ok(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 50000));
    ok(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 50000, NULL, params, NULL));
    assert_int_equal(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 300000),
                     CUDA_ERROR_INVALID_VALUE);
    ok(cuModuleLoadData(&module, "\x50\xed\x55\xba"));
    assert_int_equal(cuModuleGetFunction(&other, module, "kops_div_f32_vector"), CUDA_ERROR_NOT_FOUND);
    assert_int_equal(cuModuleGetFunction(&other, module, "kops_copy_3_vector"), CUDA_ERROR_NOT_FOUND);
    ok(cuModuleUnload(module));
    assert_int_equal(cuModuleGetFunction(&other, module, "kops_add_f32_vector"), CUDA_ERROR_INVALID_HANDLE);
}

static void stray_access_breaks_the_context(void)
{
    CUdeviceptr a, b;
    CUevent event;
    CUcontext context;

    ok(cuMemAlloc(&a, 4096));
    ok(cuEventCreate(&event, 0));
    launch_square(a, 1025, NULL);
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuMemAlloc(&b, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuMemFree(a), CUDA_ERROR_ILLEGAL_ADDRESS);
    ok(cuDevicePrimaryCtxRelease(0));
    assert_int_equal(cuDevicePrimaryCtxReset(0), CUDA_ERROR_DEVICE_UNAVAILABLE);
    ok(cuDevicePrimaryCtxRetain(&context, 0));
    ok(cuCtxSetCurrent(context));
    assert_int_equal(cuMemAlloc(&b, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(COUNTER(sticky), 1);
}

static void switched_faults_fire(void)
{
    struct standin_fault *fault = arm_fault("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY, false);
    CUdeviceptr a;

    ok(cuMemAlloc(&a, 64));
    assert_int_equal(cuMemAlloc(&a, 64), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(fault->armed, 0);
    ok(cuMemAlloc(&a, 64));
    arm_fault("kernel", 1, CUDA_ERROR_ECC_UNCORRECTABLE, false);
    launch_square(a, 16, NULL);
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_int_equal(COUNTER(kernels_run), 0);
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
    DRIVER_TEST(gate_holds_one_stream),
    DRIVER_TEST(destroyed_stream_goes_on),
    DRIVER_TEST(default_stream_waits_for_blocking_ones),
    DRIVER_TEST(free_during_use_is_misuse),
    DRIVER_TEST(pageable_copies_block),
    DRIVER_TEST(stream_order_frees),
    DRIVER_TEST(threads_at_once),
    DRIVER_TEST(free_waits_for_the_device),
    DRIVER_TEST(bad_launches_are_refused),
    DRIVER_TEST(stray_access_breaks_the_context),
    DRIVER_TEST(switched_faults_fire),
    DRIVER_TEST(fork_loses_the_driver),
};

int main(int argc, char **argv)
{
    return run_driver_tests(argc, argv, tests, sizeof(tests) / sizeof(*tests));
}

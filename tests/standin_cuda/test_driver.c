/* The stand-in driver within one process: memory, streams, events, gates, launches, misuse. What breaks a context runs
 * in a forked child of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cuda.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "kernels/cuda/ops/params.h"

#define ok(call) assert_int_equal((call), CUDA_SUCCESS)

static struct standin_control *control;
static struct standin_row *row;

static int64_t counter(enum standin_counter_id id)
{
    return row->counters[id];
}

#define COUNTER(name) counter(STANDIN_COUNTER_##name)

/* Polls: the other side is a thread of the driver. The bound only ends a test that has failed. */
static void wait_until(_Atomic uint64_t *value, uint64_t is)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    for (unsigned i = 0; i < 60000 && *value != is; i++)
        nanosleep(&pause, NULL);
    assert_int_equal(*value, is);
}

static void start(void)
{
    CUcontext context;

    ok(cuInit(0));
    for (unsigned i = 0; i < STANDIN_ROWS; i++)
        if (control->rows[i].pid == getpid())
            row = &control->rows[i];
    assert_non_null(row);
    ok(cuDevicePrimaryCtxRetain(&context, 0));
    ok(cuCtxSetCurrent(context));
}

/* Runs the test of that name in a process of its own. */
static void in_process(const char *name)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        execl("/proc/self/exe", "test_driver", name, NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static CUfunction kernel(const char *name)
{
    static CUmodule module;
    static pid_t loaded_by;
    CUfunction function;

    if (loaded_by != getpid()) {
        ok(cuModuleLoadData(&module, "any image"));
        loaded_by = getpid();
    }
    ok(cuModuleGetFunction(&function, module, name));
    return function;
}

/* a[i] = a[i]² for n floats. */
static void launch_square(CUdeviceptr a, uint64_t n, CUstream stream)
{
    struct cuda_ops_vector p = {.out = a, .a = a, .count = n, .a_step = 1, .a_aligned = 1};
    void *params[] = {&p};

    ok(cuLaunchKernel(kernel("kops_square_f32_vector"), 4, 1, 1, 256, 1, 1, 0, stream, params, NULL));
}

/* ---- memory ---- */

static void memory_repeats_handles(void)
{
    CUipcMemHandle first, second;
    CUdeviceptr a, b, base;
    uint64_t id_a, id_b;
    size_t size;

    ok(cuMemAlloc(&a, 1000));
    ok(cuIpcGetMemHandle(&first, a + 500));
    ok(cuPointerGetAttribute(&id_a, CU_POINTER_ATTRIBUTE_BUFFER_ID, a + 999));
    ok(cuMemGetAddressRange(&base, &size, a + 999));
    assert_int_equal(base, a);
    assert_int_equal(size, 1000);
    assert_int_equal(cuMemGetAddressRange(&base, &size, a + 1000), CUDA_ERROR_NOT_FOUND);
    ok(cuMemFree(a));
    ok(cuMemAlloc(&b, 2000));
    ok(cuIpcGetMemHandle(&second, b));
    ok(cuPointerGetAttribute(&id_b, CU_POINTER_ATTRIBUTE_BUFFER_ID, b));
    assert_int_equal(a, b);
    assert_memory_equal(&first, &second, sizeof(first));
    assert_int_not_equal(id_a, id_b);
    assert_int_equal(cuIpcOpenMemHandle(&base, second, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
    ok(cuMemFree(b));
    assert_int_equal(COUNTER(misuse), 0);
}

static void memory_is_never_zero(void)
{
    unsigned char bytes[64], other[64];
    CUdeviceptr a;

    ok(cuMemAlloc(&a, sizeof(bytes)));
    memset(bytes, 0, sizeof(bytes));
    ok(cuMemcpyDtoH(other, a, sizeof(other)));
    assert_memory_not_equal(bytes, other, sizeof(bytes));
    ok(cuMemsetD8(a, 0, sizeof(bytes)));
    ok(cuMemcpyDtoH(other, a, sizeof(other)));
    assert_memory_equal(bytes, other, sizeof(bytes));
    ok(cuMemFree(a));
}

static void misuse_is_reported(void)
{
    CUdeviceptr a;
    CUevent event;
    CUstream stream;

    ok(cuMemAlloc(&a, 64));
    assert_int_equal(cuMemFree(a + 1), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemFree(a));
    assert_int_equal(cuMemFree(a), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(COUNTER(misuse), 2);
    assert_non_null(strstr(row->last_misuse, "cuMemFree"));
    ok(cuEventCreate(&event, 0));
    ok(cuEventDestroy(event));
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    assert_non_null(strstr(row->last_misuse, "destroyed"));
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ok(cuStreamDestroy(stream));
    assert_int_equal(cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(cuIpcCloseMemHandle(a), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemHostUnregister(&a), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    ok(cuCtxSetCurrent(NULL));
    assert_int_equal(cuMemAlloc(&a, 64), CUDA_ERROR_INVALID_CONTEXT);
}

static void memory_limit_is_kept(void)
{
    size_t available, total;
    CUdeviceptr a, b;

    control->memory_limit = 8 << 20;
    ok(cuMemAlloc(&a, 5 << 20));
    assert_int_equal(cuMemAlloc(&b, 5 << 20), CUDA_ERROR_OUT_OF_MEMORY);
    ok(cuMemGetInfo(&available, &total));
    assert_int_equal(total, 8 << 20);
    assert_int_equal(available, 2 << 20); /* in granules */
    ok(cuMemFree(a));
    ok(cuMemAlloc(&b, 5 << 20));
    ok(cuMemFree(b));
    control->memory_limit = 0;
}

static void host_registration(void)
{
    void *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUdeviceptr address;

    ok(cuMemHostRegister(pages, 2 * 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    assert_int_equal(cuMemHostRegister((char *)pages + 4096, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    ok(cuMemHostGetDevicePointer(&address, pages, 0));
    assert_int_equal(address, (uintptr_t)pages);
    ok(cuMemHostUnregister(pages));
    mprotect(pages, 4096, PROT_READ);
    assert_int_equal(cuMemHostRegister(pages, 8192, 0), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemHostRegister(pages, 8192, CU_MEMHOSTREGISTER_READ_ONLY));
    ok(cuMemHostUnregister(pages));
    assert_int_equal(COUNTER(misuse), 0);
    ok(cuMemHostRegister((char *)pages + 4096, 4096, 0));
    munmap(pages, 3 * 4096);
    ok(cuMemHostUnregister((char *)pages + 4096));
    assert_non_null(strstr(row->last_misuse, "unmapped while it was registered"));
    assert_int_equal(COUNTER(live_host_registrations), 0);
}

static void vmm_maps(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle, imported;
    CUdeviceptr a, b;
    size_t unit;
    int fd, value = 42, got = 0;

    ok(cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    assert_int_equal(cuMemCreate(&handle, unit / 2, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemCreate(&handle, unit, &prop, 0));
    ok(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    ok(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    ok(cuMemAddressReserve(&a, 2 * unit, 0, 0, 0));
    ok(cuMemAddressReserve(&b, unit, 0, 0, 0));
    assert_int_equal(cuMemMap(a, 2 * unit, 0, imported, 0), CUDA_ERROR_NOT_SUPPORTED);
    ok(cuMemMap(a, unit, 0, handle, 0));
    ok(cuMemMap(b, unit, 0, imported, 0));
    ok(cuMemRelease(handle));
    ok(cuMemRelease(imported));
    ok(cuMemSetAccess(a, unit, &access, 1));
    ok(cuMemSetAccess(b, unit, &access, 1));
    ok(cuMemcpyHtoD(a, &value, sizeof(value)));
    ok(cuMemcpyDtoH(&got, b, sizeof(got)));
    assert_int_equal(got, value);
    assert_int_equal(COUNTER(misuse), 0);
    assert_int_equal(cuMemAddressFree(a, 2 * unit), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemFree(a), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(COUNTER(misuse), 2);
    ok(cuMemUnmap(a, unit));
    ok(cuMemUnmap(b, unit));
    ok(cuMemAddressFree(a, 2 * unit));
    ok(cuMemAddressFree(b, unit));
    assert_int_equal(COUNTER(live_vmm_maps), 0);
    assert_int_equal(COUNTER(live_vmm_reservations), 0);
    assert_int_equal(COUNTER(live_vmm_handles), 0);
}

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
    ok(cuModuleLoadData(&module, "any"));
    assert_int_equal(cuModuleGetFunction(&other, module, "kops_div_f32_vector"), CUDA_ERROR_NOT_FOUND);
    assert_int_equal(cuModuleGetFunction(&other, module, "kops_copy_4_vector"), CUDA_ERROR_NOT_FOUND);
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

static struct standin_fault *arm(const char *function, unsigned countdown, CUresult error, bool sticky)
{
    struct standin_fault *fault = &control->faults[0];

    snprintf(fault->function, sizeof(fault->function), "%s", function);
    fault->countdown = countdown;
    fault->times = 1;
    fault->error = (int32_t)error;
    fault->sticky = sticky;
    fault->pid = getpid();
    fault->armed = 1;
    return fault;
}

static void switched_faults_fire(void)
{
    struct standin_fault *fault = arm("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY, false);
    CUdeviceptr a;

    ok(cuMemAlloc(&a, 64));
    assert_int_equal(cuMemAlloc(&a, 64), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(fault->armed, 0);
    ok(cuMemAlloc(&a, 64));
    arm("kernel", 1, CUDA_ERROR_ECC_UNCORRECTABLE, false);
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

#define TESTS(X)                                                                                                       \
    X(memory_repeats_handles)                                                                                          \
    X(memory_is_never_zero)                                                                                            \
    X(misuse_is_reported)                                                                                              \
    X(memory_limit_is_kept)                                                                                            \
    X(host_registration)                                                                                               \
    X(vmm_maps)                                                                                                        \
    X(gate_holds_one_stream)                                                                                           \
    X(destroyed_stream_goes_on)                                                                                        \
    X(default_stream_waits_for_blocking_ones)                                                                          \
    X(free_during_use_is_misuse)                                                                                       \
    X(pageable_copies_block)                                                                                           \
    X(stream_order_frees)                                                                                              \
    X(bad_launches_are_refused)                                                                                        \
    X(stray_access_breaks_the_context)                                                                                 \
    X(switched_faults_fire)                                                                                            \
    X(fork_loses_the_driver)

#define X(name)                                                                                                        \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        in_process(#name);                                                                                             \
    }                                                                                                                  \
    static void alone_##name(void **state)                                                                             \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        start();                                                                                                       \
        name();                                                                                                        \
    }
TESTS(X)
#undef X

static const struct CMUnitTest tests[] = {
#define X(name) cmocka_unit_test(test_##name),
    TESTS(X)
#undef X
};

static const struct CMUnitTest alone[] = {
#define X(name) {#name, alone_##name, NULL, NULL, NULL},
    TESTS(X)
#undef X
};

static int run_alone(const char *name)
{
    int fd = open(getenv("KOPS_STANDIN_CONTROL"), O_RDWR | O_CLOEXEC);

    control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (size_t i = 0; i < sizeof(alone) / sizeof(*alone); i++)
        if (strcmp(alone[i].name, name) == 0)
            return _cmocka_run_group_tests(name, &alone[i], 1, NULL, NULL);
    return 1;
}

int main(int argc, char **argv)
{
    char path[] = "/tmp/kops-standin-XXXXXX";
    int fd, failed;

    if (argc > 1)
        return run_alone(argv[1]);
    fd = mkstemp(path);
    if (fd < 0 || ftruncate(fd, sizeof(*control)) < 0)
        return 1;
    setenv("KOPS_STANDIN_CONTROL", path, 1);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    close(fd);
    unlink(path);
    return failed;
}

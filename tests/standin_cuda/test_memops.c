/* The stand-in driver's stream memory operations, pinned memory, and what streams tell about themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test_support.h"

/* A page that a process shares with its children, registered. */
static _Atomic uint64_t *shared_words(CUdeviceptr *ret_address)
{
    int fd = memfd_create("words", MFD_CLOEXEC);
    void *words;

    assert_int_equal(ftruncate(fd, 4096), 0);
    words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(words != MAP_FAILED);
    close(fd);
    ok(cuMemHostRegister(words, 4096, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE));
    ok(cuMemHostGetDevicePointer(ret_address, words, 0));
    return words;
}

static void wait_holds_until_the_cpu_writes(void)
{
    CUstream held = new_stream(), other = new_stream();
    _Atomic uint64_t *words;
    CUdeviceptr at, a;

    words = shared_words(&at);
    ok(cuMemAlloc(&a, 64));
    words[0] = 4;
    ok(cuStreamWaitValue64(held, at, 5, CU_STREAM_WAIT_VALUE_GEQ));
    launch_square(a, 16, held);
    ok(cuStreamWriteValue64(held, at + 8, 77, CU_STREAM_WRITE_VALUE_DEFAULT));
    launch_square(a, 16, other); /* is not held */
    ok(cuStreamSynchronize(other));
    assert_int_equal(COUNTER(kernels_run), 1);
    assert_int_equal(words[1], 0);
    assert_int_equal(cuStreamQuery(held), CUDA_ERROR_NOT_READY);
    words[0] = 5;
    ok(cuStreamSynchronize(held));
    assert_int_equal(words[1], 77);
    assert_int_equal(COUNTER(kernels_run), 2);
    assert_int_equal(COUNTER(value_waits), 1);
    assert_int_equal(COUNTER(value_writes), 1);
    assert_int_equal(COUNTER(misuse), 0);
}

/* Two streams that hand each other the turn through device memory. */
static void streams_release_each_other(void)
{
    CUstream first = new_stream(), second = new_stream();
    uint32_t got[2];
    CUdeviceptr at;

    ok(cuMemAlloc(&at, 64));
    ok(cuMemsetD32(at, 0, 16));
    ok(cuCtxSynchronize());
    for (uint32_t turn = 1; turn <= 50; turn++) {
        ok(cuStreamWaitValue32(second, at, turn, CU_STREAM_WAIT_VALUE_EQ));
        ok(cuStreamWriteValue32(second, at + 4, turn, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
    }
    for (uint32_t turn = 1; turn <= 50; turn++) {
        ok(cuStreamWriteValue32(first, at, turn, 0));
        ok(cuStreamWaitValue32(first, at + 4, turn, CU_STREAM_WAIT_VALUE_GEQ));
    }
    ok(cuStreamSynchronize(first));
    ok(cuStreamSynchronize(second));
    ok(cuMemcpyDtoH(got, at, sizeof(got)));
    assert_int_equal(got[0], 50);
    assert_int_equal(got[1], 50);
}

static void another_process_releases_a_wait(void)
{
    CUstream stream = new_stream();
    _Atomic uint64_t *words;
    CUdeviceptr at;
    int status;
    pid_t pid;

    words = shared_words(&at);
    ok(cuStreamWaitValue64(stream, at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    ok(cuStreamWriteValue64(stream, at + 8, 2, 0));
    pid = fork();
    if (pid == 0) {
        words[0] = 1;
        while (words[1] != 2)
            usleep(100);
        _exit(0);
    }
    ok(cuStreamSynchronize(stream));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* A wait for `value` with `flags` is over, or is not, with `now` in the word. */
static void expect_wait(uint64_t now, uint64_t value, unsigned flags, bool wide, bool over)
{
    static CUstream stream, reader;
    static _Atomic uint64_t *words;
    static CUdeviceptr at;

    if (!stream) {
        stream = new_stream();
        reader = new_stream();
        words = shared_words(&at);
    }
    words[0] = now;
    words[1] = 0;
    words[2] = 0;
    ok(wide ? cuStreamWaitValue64(stream, at, value, flags) : cuStreamWaitValue32(stream, at, (uint32_t)value, flags));
    ok(cuStreamWriteValue64(stream, at + 8, 1, 0));
    /* What is not over stays so: many turns of another stream later it has not run on. */
    for (uint64_t turn = 1; !over && turn <= 100; turn++) {
        ok(cuStreamWriteValue64(reader, at + 16, turn, 0));
        ok(cuStreamSynchronize(reader));
    }
    while (over && !words[1])
        usleep(100);
    assert_int_equal(words[1], over);
    for (uint64_t guess = 0; cuStreamQuery(stream) == CUDA_ERROR_NOT_READY; guess++) {
        const uint64_t guesses[] = {value, ~value, 0, value + 1};

        words[0] = guesses[guess % 4];
        usleep(500);
    }
}

static void comparisons_are_the_devices(void)
{
    expect_wait(7, 7, CU_STREAM_WAIT_VALUE_GEQ, true, true);
    expect_wait(6, 7, CU_STREAM_WAIT_VALUE_GEQ, true, false);
    /* In signed distance: past the end of the numbers comes 0. */
    expect_wait(2, UINT64_MAX - 1, CU_STREAM_WAIT_VALUE_GEQ, true, true);
    expect_wait(UINT64_MAX - 1, 2, CU_STREAM_WAIT_VALUE_GEQ, true, false);
    expect_wait(INT64_MAX, 9, CU_STREAM_WAIT_VALUE_GEQ, true, true);
    expect_wait(2, UINT32_MAX - 1, CU_STREAM_WAIT_VALUE_GEQ, false, true);
    expect_wait(8, 7, CU_STREAM_WAIT_VALUE_EQ, true, false);
    expect_wait(UINT64_C(1) << 40 | 7, 7, CU_STREAM_WAIT_VALUE_EQ, false, true); /* sees the lower half only */
    expect_wait(6, 2, CU_STREAM_WAIT_VALUE_AND, true, true);
    expect_wait(6, 8, CU_STREAM_WAIT_VALUE_AND, true, false);
    expect_wait(6, 8, CU_STREAM_WAIT_VALUE_NOR, true, true);
    expect_wait(UINT64_MAX - 8, 8, CU_STREAM_WAIT_VALUE_NOR, true, false);
}

static void bad_words_are_refused(void)
{
    CUstream stream = new_stream(), gone = new_stream();
    uint64_t local = 0;
    CUdeviceptr at;

    ok(cuMemAlloc(&at, 12));
    assert_int_equal(cuStreamWaitValue64(stream, at + 4, 1, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuStreamWaitValue64(stream, at + 8, 1, 0), CUDA_ERROR_INVALID_VALUE); /* half of it outside */
    assert_int_equal(cuStreamWaitValue32(stream, at + 2, 1, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuStreamWriteValue64(stream, 0, 1, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuStreamWriteValue64(stream, (uintptr_t)&local, 1, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuStreamWriteValue64(stream, at, 1, 2), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuStreamWaitValue64(stream, at, 1, 4), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuStreamWaitValue64(stream, at, 1, CU_STREAM_WAIT_VALUE_FLUSH), CUDA_ERROR_NOT_SUPPORTED);
    setenv("KOPS_STANDIN_ATTRIBUTES", "78=0,122=0", 1); /* a device without 64-bit operations */
    assert_int_equal(cuStreamWriteValue64(stream, at, 1, 0), CUDA_ERROR_NOT_SUPPORTED);
    ok(cuStreamWriteValue32(stream, at, 1, 0));
    unsetenv("KOPS_STANDIN_ATTRIBUTES");
    ok(cuStreamSynchronize(stream));
    assert_int_equal(COUNTER(misuse), 0);
    ok(cuStreamDestroy(gone));
    assert_int_equal(cuStreamWaitValue64(gone, at, 1, 0), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(COUNTER(queued), 0);
}

/* A fault elsewhere ends a wait that will never be over: nothing hangs. */
static void a_broken_context_ends_waits(void)
{
    CUstream stream = new_stream();
    CUdeviceptr at;

    ok(cuMemAlloc(&at, 64));
    ok(cuMemsetD32(at, 0, 16));
    ok(cuCtxSynchronize());
    ok(cuStreamWaitValue64(stream, at, 1, 0));
    launch_square(at, 17, NULL);
    assert_int_equal(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    wait_until((_Atomic uint64_t *)&row->counters[STANDIN_COUNTER_queued], 0);
    assert_int_equal(COUNTER(value_waits), 0);
}

static void batches_run_in_order(void)
{
    CUstreamBatchMemOpParams ops[5] = {0};
    CUstream stream = new_stream();
    _Atomic uint64_t *words;
    CUdeviceptr at;

    words = shared_words(&at);
    ops[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    ops[0].writeValue.address = at + 8;
    ops[0].writeValue.value64 = UINT64_C(3) << 40;
    ops[1].memoryBarrier.operation = CU_STREAM_MEM_OP_BARRIER;
    ops[2].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    ops[2].waitValue.address = at;
    ops[2].waitValue.value64 = UINT64_C(1) << 33;
    ops[2].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    ops[3].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[3].writeValue.address = at + 8;
    ops[3].writeValue.value = 9;
    ok(cuStreamBatchMemOp(stream, 4, ops, 0));
    while (words[1] != UINT64_C(3) << 40)
        usleep(100);
    assert_int_equal(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    words[0] = UINT64_C(1) << 33;
    ok(cuStreamSynchronize(stream));
    assert_int_equal(words[1], (UINT64_C(3) << 40) + 9);
    /* One bad entry: none runs. */
    ops[0].writeValue.value64 = 1;
    ops[3].writeValue.address = at + 4096;
    assert_int_equal(cuStreamBatchMemOp(stream, 4, ops, 0), CUDA_ERROR_INVALID_VALUE);
    ops[3].flushRemoteWrites.operation = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
    ops[3].flushRemoteWrites.flags = 0;
    assert_int_equal(cuStreamBatchMemOp(stream, 4, ops, 0), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(cuStreamBatchMemOp(stream, 5, ops, 0), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(cuStreamBatchMemOp(stream, 257, ops, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuStreamBatchMemOp(stream, 0, ops, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuStreamBatchMemOp(stream, 1, ops, 1), CUDA_ERROR_INVALID_VALUE);
    ok(cuStreamSynchronize(stream));
    assert_int_equal(words[1], (UINT64_C(3) << 40) + 9);
}

static void pinned_memory(void)
{
    CUstream stream = new_stream();
    uint64_t *words;
    CUdeviceptr at;
    unsigned flags, type;

    ok(cuMemHostAlloc((void **)&words, 5000, CU_MEMHOSTALLOC_PORTABLE));
    ok(cuMemHostGetDevicePointer(&at, words + 1, 0));
    assert_int_equal(at, (uintptr_t)(words + 1));
    ok(cuMemHostGetFlags(&flags, words));
    assert_int_equal(flags, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    ok(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    assert_int_equal(type, CU_MEMORYTYPE_HOST);
    ok(cuStreamWriteValue64(stream, at, 42, 0));
    ok(cuStreamSynchronize(stream));
    assert_int_equal(words[1], 42);
    assert_int_equal(COUNTER(live_pinned), 1);
    assert_int_equal(COUNTER(live_host_registrations), 0);
    assert_int_equal(cuMemHostAlloc((void **)&words, 0, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemHostAlloc((void **)&words, 64, 8), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(COUNTER(misuse), 0);
    assert_int_equal(cuMemHostUnregister(words), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    assert_int_equal(cuMemFreeHost(words + 1), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemFreeHost(words));
    assert_int_equal(cuMemFreeHost(words), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(COUNTER(misuse), 3);
    ok(cuMemAllocHost((void **)&words, 64));
    ok(cuMemFreeHost(words));
    assert_int_equal(COUNTER(live_pinned), 0);
}

static void streams_tell_what_they_are(void)
{
    unsigned long long ids[3];
    CUstreamCaptureStatus capturing;
    CUcontext context, current;
    CUstream high, usual;
    int least, greatest, priority;
    unsigned flags;
    CUdevice device;
    void *found;

    ok(cuCtxGetStreamPriorityRange(&least, &greatest));
    assert_true(greatest < least);
    ok(cuStreamCreateWithPriority(&high, CU_STREAM_NON_BLOCKING, greatest - 10));
    ok(cuStreamCreate(&usual, CU_STREAM_DEFAULT));
    ok(cuStreamGetPriority(high, &priority));
    assert_int_equal(priority, greatest);
    ok(cuStreamGetPriority(usual, &priority));
    assert_int_equal(priority, least);
    ok(cuStreamGetFlags(high, &flags));
    assert_int_equal(flags, CU_STREAM_NON_BLOCKING);
    ok(cuStreamGetId(high, &ids[0]));
    ok(cuStreamGetId(usual, &ids[1]));
    ok(cuStreamGetId(NULL, &ids[2]));
    assert_true(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    ok(cuCtxGetCurrent(&current));
    ok(cuStreamGetCtx(high, &context));
    assert_ptr_equal(context, current);
    ok(cuStreamGetDevice(NULL, &device));
    assert_int_equal(device, 0);
    ok(cuCtxSetCurrent(NULL)); /* a stream knows its context */
    ok(cuStreamGetCtx(high, &context));
    assert_ptr_equal(context, current);
    ok(cuStreamIsCapturing(high, &capturing));
    assert_int_equal(cuStreamGetCtx(NULL, &context), CUDA_ERROR_INVALID_CONTEXT);
    ok(cuCtxSetCurrent(current));
    ok(cuStreamDestroy(high));
    assert_int_equal(cuStreamGetId(high, &ids[0]), CUDA_ERROR_INVALID_HANDLE);
    ok(cuGetProcAddress("cuStreamWaitValue64", &found, CUDA_VERSION, 0, NULL));
    assert_ptr_equal(found, dlsym(RTLD_DEFAULT, "cuStreamWaitValue64_v2"));
    assert_non_null(dlsym(RTLD_DEFAULT, "cuStreamBatchMemOp"));
}

static void switched_faults_reach_words(void)
{
    CUstream stream = new_stream();
    CUdeviceptr at;

    ok(cuMemAlloc(&at, 64));
    arm_fault("cuStreamWriteValue64", 2, CUDA_ERROR_NOT_SUPPORTED, false);
    ok(cuStreamWriteValue64(stream, at, 1, 0));
    assert_int_equal(cuStreamWriteValue64(stream, at, 2, 0), CUDA_ERROR_NOT_SUPPORTED);
    ok(cuStreamWriteValue64(stream, at, 3, 0));
    arm_fault("cuMemHostAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY, false);
    assert_int_equal(cuMemHostAlloc((void **)&at, 64, 0), CUDA_ERROR_OUT_OF_MEMORY);
}

static const struct driver_test tests[] = {
    DRIVER_TEST(wait_holds_until_the_cpu_writes),
    DRIVER_TEST(streams_release_each_other),
    DRIVER_TEST(another_process_releases_a_wait),
    DRIVER_TEST(comparisons_are_the_devices),
    DRIVER_TEST(bad_words_are_refused),
    DRIVER_TEST(a_broken_context_ends_waits),
    DRIVER_TEST(batches_run_in_order),
    DRIVER_TEST(pinned_memory),
    DRIVER_TEST(streams_tell_what_they_are),
    DRIVER_TEST(switched_faults_reach_words),
};

int main(int argc, char **argv)
{
    return run_driver_tests(argc, argv, tests, sizeof(tests) / sizeof(*tests));
}

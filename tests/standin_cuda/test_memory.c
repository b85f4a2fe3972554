/* What the stand-in driver reports and refuses of memory: misuse, host memory, maps, pools, words, another device's. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test_support.h"

static void inside_of_memory(void)
{
    CUdeviceptr a, base;
    CUipcMemHandle handle;
    size_t size;

    ok(cuMemAlloc(&a, 1000));
    ok(cuMemGetAddressRange(&base, &size, a + 999));
    assert_int_equal(base, a);
    assert_int_equal(size, 1000);
    assert_int_equal(cuMemGetAddressRange(&base, &size, a + 1000), CUDA_ERROR_NOT_FOUND);
    ok(cuIpcGetMemHandle(&handle, a + 500));
    assert_int_equal(cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(COUNTER(misuse), 0);
}

static void memory_is_never_zero(void)
{
    static const unsigned char zeros[64];
    unsigned char bytes[64];
    CUdeviceptr a;

    ok(cuMemAlloc(&a, sizeof(bytes)));
    ok(cuMemcpyDtoH(bytes, a, sizeof(bytes)));
    assert_memory_not_equal(bytes, zeros, sizeof(bytes));
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

static const CUmemAllocationProp of_device_1 = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};

static void maps_that_cannot_be(void)
{
    CUmemGenericAllocationHandle handle;
    size_t unit;
    CUdeviceptr a;

    ok(cuMemGetAllocationGranularity(&unit, &of_device_1, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    assert_int_equal(cuMemCreate(&handle, unit / 2, &of_device_1, 0), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemCreate(&handle, unit, &of_device_1, 0));
    ok(cuMemAddressReserve(&a, 2 * unit, 0, 0, 0));
    assert_int_equal(cuMemMap(a, 2 * unit, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    ok(cuMemMap(a, unit, 0, handle, 0));
    assert_int_equal(COUNTER(misuse), 0);
    assert_int_equal(cuMemAddressFree(a, 2 * unit), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemFree(a), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(COUNTER(misuse), 2);
}

static void plain_names_refuse(void)
{
    CUresult (*old)(void *, unsigned) = (CUresult(*)(void *, unsigned))dlsym(RTLD_DEFAULT, "cuMemAlloc");
    unsigned address = 7;

    assert_non_null(old);
    assert_int_equal(old(&address, 64), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(address, 7);
    assert_non_null(strstr(row->last_misuse, "cuMemAlloc_v2"));
}

static void pinned_memory(void)
{
    uint64_t *words;

    assert_int_equal(cuMemHostAlloc((void **)&words, 0, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemHostAlloc((void **)&words, 64, 8), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemHostAlloc((void **)&words, 5000, CU_MEMHOSTALLOC_PORTABLE));
    assert_int_equal(COUNTER(misuse), 0);
    assert_int_equal(cuMemHostUnregister(words), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    assert_int_equal(cuMemFreeHost(words + 1), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemFreeHost(words));
    assert_int_equal(cuMemFreeHost(words), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(COUNTER(misuse), 3);
}

static CUmemoryPool new_pool(int device)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemoryPool pool;

    ok(cuMemPoolCreate(&pool, &props));
    return pool;
}

static void memory_of_a_pool_is_freed_once(void)
{
    CUipcMemHandle handle;
    CUdeviceptr a;

    ok(cuMemAllocFromPoolAsync(&a, 4096, new_pool(0), NULL));
    assert_int_equal(cuIpcGetMemHandle(&handle, a), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemFreeAsync(a, NULL));
    assert_int_equal(cuMemFreeAsync(a, NULL), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(COUNTER(misuse), 1);
}

static void bad_words_are_refused(void)
{
    uint64_t local = 0;
    CUdeviceptr at;

    ok(cuMemAlloc(&at, 12));
    for (unsigned i = 0; i < 5; i++) {
        const CUdeviceptr addresses[] = {at + 4, at + 8 /* half of it outside */, 0, (uintptr_t)&local, at};
        const unsigned flags = i == 4 ? CU_STREAM_WAIT_VALUE_FLUSH : 0;

        if (cuStreamWriteValue64(NULL, addresses[i], 1, flags) != CUDA_ERROR_INVALID_VALUE ||
            cuStreamWaitValue64(NULL, addresses[i], 1, flags) != CUDA_ERROR_INVALID_VALUE)
            fail_msg("word %u", i);
    }
    setenv("KOPS_STANDIN_ATTRIBUTES", "122=0", 1); /* a device without 64-bit operations */
    assert_int_equal(cuStreamWriteValue64(NULL, at, 1, 0), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(COUNTER(misuse), 0);
    assert_int_equal(COUNTER(queued), 0);
}

/* ---- two devices ---- */

/* The primary context of device 1, which does not become current. */
static CUcontext second_context(void)
{
    CUcontext context;

    ok(cuDevicePrimaryCtxRetain(&context, 1));
    return context;
}

static void fill_there(CUcontext there, CUdeviceptr a, float value)
{
    ok(cuCtxPushCurrent(there));
    set_floats(a, value);
    ok(cuCtxPopCurrent(NULL));
}

static float first_there(CUcontext there, CUdeviceptr a)
{
    float value;

    ok(cuCtxPushCurrent(there));
    value = first_of(a);
    ok(cuCtxPopCurrent(NULL));
    return value;
}

static void an_unasked_peer_is_not_reached(void)
{
    CUcontext there = second_context();
    CUdeviceptr a, b = new_floats(5);

    ok(cuCtxPushCurrent(there));
    a = new_floats(3);
    ok(cuCtxPopCurrent(NULL));
    ok(cuMemcpyDtoDAsync(b, a, 64, NULL)); /* copy engines reach it */
    assert_true(first_of(b) == 3);
    launch_square(a, 16, NULL);
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void maps_are_open_to_the_devices_named(void)
{
    CUmemAccessDesc access[2] = {
        {.location = of_device_1.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 2}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    CUmemGenericAllocationHandle handle;
    CUcontext there = second_context();
    const size_t unit = 2 << 20;
    CUdeviceptr a;

    ok(cuMemCreate(&handle, unit, &of_device_1, 0));
    ok(cuMemAddressReserve(&a, unit, 0, 0, 0));
    ok(cuMemMap(a, unit, 0, handle, 0));
    ok(cuMemSetAccess(a, unit, access, 1));
    fill_there(there, a, 3);
    assert_int_equal(cuMemSetAccess(a, unit, access, 2), CUDA_ERROR_INVALID_DEVICE);
    access[1].location.id = 0;
    ok(cuMemSetAccess(a, unit, access, 2));
    launch_square(a, 16, NULL);
    ok(cuCtxSynchronize());
    assert_true(first_there(there, a) == 9);
    access[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    ok(cuMemSetAccess(a, unit, access, 2));
    launch_square(a, 16, NULL); /* writes */
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void pool_access_is_the_pools(void)
{
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemoryPool pool = new_pool(1);
    CUcontext there = second_context();
    CUdeviceptr a;

    ok(cuMemPoolSetAccess(pool, &access, 1));
    ok(cuMemAllocFromPoolAsync(&a, 64, pool, NULL)); /* of another device than the stream */
    set_floats(a, 3);
    launch_square(a, 16, NULL);
    ok(cuCtxSynchronize());
    assert_true(first_there(there, a) == 9);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    assert_int_equal(cuMemPoolSetAccess(pool, &access, 1), CUDA_ERROR_INVALID_VALUE);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    ok(cuMemPoolSetAccess(pool, &access, 1));
    access.location.id = 1;
    assert_int_equal(cuMemPoolSetAccess(pool, &access, 1), CUDA_ERROR_INVALID_VALUE);
    launch_square(a, 16, NULL);
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static const struct driver_test tests[] = {
    DRIVER_TEST(inside_of_memory),
    DRIVER_TEST(memory_is_never_zero),
    DRIVER_TEST(misuse_is_reported),
    DRIVER_TEST(host_registration),
    DRIVER_TEST(maps_that_cannot_be),
    DRIVER_TEST(plain_names_refuse),
    DRIVER_TEST(pinned_memory),
    DRIVER_TEST(memory_of_a_pool_is_freed_once),
    DRIVER_TEST(bad_words_are_refused),
    DRIVER_TEST(an_unasked_peer_is_not_reached),
    DRIVER_TEST(maps_are_open_to_the_devices_named),
    DRIVER_TEST(pool_access_is_the_pools),
};

int main(int argc, char **argv)
{
    setenv("KOPS_STANDIN_DEVICES", "2", 1);
    return run_driver_tests(argc, argv, tests, sizeof(tests) / sizeof(*tests));
}

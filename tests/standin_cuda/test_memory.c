/* What the stand-in driver reports and refuses of memory: misuse, host memory, maps, pools, words, another device's. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test_support.h"

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
    assert_int_equal(COUNTER(live_pinned), 0);
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

/* ---- two devices ---- */

/* The primary context of device 1, which does not become current. */
static CUcontext second_context(void)
{
    CUcontext context;

    ok(cuDevicePrimaryCtxRetain(&context, 1));
    return context;
}

/* 16 floats in memory of device 1. */
static CUdeviceptr new_floats_there(CUcontext there, float value)
{
    CUdeviceptr a;

    ok(cuCtxPushCurrent(there));
    a = new_floats(value);
    ok(cuCtxPopCurrent(NULL));
    return a;
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
    CUdeviceptr a = new_floats_there(there, 3), b = new_floats(5);

    ok(cuMemcpyDtoD(b, a, 64)); /* copy engines reach it */
    ok(cuCtxSynchronize());
    assert_true(first_of(b) == 3);
    launch_square(a, 16, NULL);
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void maps_are_open_to_the_devices_named(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemAccessDesc access[2] = {
        {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    CUmemGenericAllocationHandle handle;
    CUcontext there = second_context();
    CUmemAllocationProp got;
    size_t unit = 2 << 20;
    uint64_t types;
    CUdeviceptr a;

    ok(cuMemCreate(&handle, unit, &prop, 0));
    ok(cuMemAddressReserve(&a, unit, 0, 0, 0));
    ok(cuMemMap(a, unit, 0, handle, 0));
    ok(cuMemRelease(handle));
    ok(cuMemSetAccess(a, unit, access, 1));
    ok(cuCtxPushCurrent(there));
    ok(cuMemsetD32(a, 0x40400000, 16)); /* 3.0f */
    ok(cuCtxSynchronize());
    ok(cuCtxPopCurrent(NULL));
    access[1].location.id = 2;
    assert_int_equal(cuMemSetAccess(a, unit, access, 2), CUDA_ERROR_INVALID_DEVICE);
    access[1].location.id = 0;
    ok(cuMemSetAccess(a, unit, access, 2));
    launch_square(a, 16, NULL);
    ok(cuCtxSynchronize());
    assert_true(first_there(there, a) == 9);
    ok(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, a));
    assert_int_equal(types, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ok(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(a + 100)));
    ok(cuMemGetAllocationPropertiesFromHandle(&got, handle));
    assert_int_equal(got.location.id, 1);
    ok(cuMemRelease(handle));
    access[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    ok(cuMemSetAccess(a, unit, access, 2));
    launch_square(a, 16, NULL); /* writes */
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static CUmemoryPool new_pool(int device, size_t max)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
                            .maxSize = max};
    CUmemoryPool pool;

    ok(cuMemPoolCreate(&pool, &props));
    return pool;
}

static void pool_access_is_the_pools(void)
{
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemoryPool pool = new_pool(1, 0);
    CUcontext there = second_context();
    CUdeviceptr a;

    ok(cuMemPoolSetAccess(pool, &access, 1));
    ok(cuMemAllocFromPoolAsync(&a, 64, pool, NULL)); /* of another device than the stream */
    ok(cuMemsetD32(a, 0x40400000, 16));
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
    DRIVER_TEST(memory_repeats_handles),
    DRIVER_TEST(memory_is_never_zero),
    DRIVER_TEST(misuse_is_reported),
    DRIVER_TEST(host_registration),
    DRIVER_TEST(vmm_maps),
    DRIVER_TEST(plain_names_refuse),
    DRIVER_TEST(pinned_memory),
    DRIVER_TEST(stream_order_frees),
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

/* The stand-in driver with several devices, and its memory pools. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "test_support.h"

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

static void an_enabled_peer_is_reached(void)
{
    CUcontext here, there = second_context();
    CUdeviceptr a = new_floats_there(there, 3);
    int can, device;

    ok(cuCtxGetCurrent(&here));
    ok(cuDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 1);
    ok(cuDeviceCanAccessPeer(&can, 0, 0));
    assert_int_equal(can, 0);
    assert_int_equal(cuDeviceCanAccessPeer(&can, 0, 2), CUDA_ERROR_INVALID_DEVICE);
    ok(cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
    assert_int_equal(can, 1);
    ok(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, a));
    assert_int_equal(device, 1);
    assert_int_equal(cuCtxEnablePeerAccess(here, 0), CUDA_ERROR_INVALID_DEVICE);
    assert_int_equal(cuCtxDisablePeerAccess(there), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    ok(cuCtxEnablePeerAccess(there, 0));
    assert_int_equal(cuCtxEnablePeerAccess(there, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    launch_square(a, 16, NULL);
    ok(cuCtxSynchronize());
    assert_true(first_there(there, a) == 9);
    ok(cuCtxDisablePeerAccess(there));
    assert_int_equal(COUNTER(misuse), 0);
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

static void a_machine_without_peers(void)
{
    CUcontext there = second_context();
    int can = 1;

    setenv("KOPS_STANDIN_NO_PEER", "1", 1);
    ok(cuDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 0);
    assert_int_equal(cuCtxEnablePeerAccess(there, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

static void copies_between_devices(void)
{
    CUcontext here, there = second_context();
    CUdeviceptr a = new_floats_there(there, 3), b = new_floats(5);
    CUstream stream = new_stream();

    ok(cuCtxGetCurrent(&here));
    assert_int_equal(cuMemcpyPeerAsync(b, there, a, here, 64, stream), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemcpyPeerAsync(b, here, a, there, 64, stream));
    ok(cuStreamSynchronize(stream));
    assert_true(first_of(b) == 3);
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
    unsigned long long flags;
    CUmemLocation first = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAllocationProp got;
    size_t unit = 2 << 20;
    uint64_t types;
    CUdeviceptr a;

    ok(cuMemCreate(&handle, unit, &prop, 0));
    ok(cuMemAddressReserve(&a, unit, 0, 0, 0));
    ok(cuMemMap(a, unit, 0, handle, 0));
    ok(cuMemRelease(handle));
    ok(cuMemSetAccess(a, unit, access, 1));
    ok(cuMemGetAccess(&flags, &first, a));
    assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ok(cuCtxPushCurrent(there));
    ok(cuMemsetD32(a, 0x40400000, 16)); /* 3.0f */
    ok(cuCtxSynchronize());
    ok(cuCtxPopCurrent(NULL));
    access[1].location.id = 2;
    assert_int_equal(cuMemSetAccess(a, unit, access, 2), CUDA_ERROR_INVALID_DEVICE);
    access[1].location.id = 0;
    ok(cuMemSetAccess(a, unit, access, 2));
    ok(cuMemGetAccess(&flags, &first, a));
    assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
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

/* ---- pools ---- */

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
    CUmemAccess_flags flags;
    CUdeviceptr a;

    ok(cuMemPoolGetAccess(&flags, pool, &access.location));
    assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ok(cuMemPoolSetAccess(pool, &access, 1));
    ok(cuMemPoolGetAccess(&flags, pool, &access.location));
    assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
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

static void pools_tell_what_they_hold(void)
{
    CUmemoryPool pool = new_pool(0, 4 << 20), got, usual;
    uint64_t used, threshold = 1 << 20;
    CUdeviceptr a, b;
    CUcontext context;
    int capable;

    ok(cuMemAllocFromPoolAsync(&a, 1000, pool, NULL));
    ok(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    assert_int_equal(used, 2 << 20);
    assert_int_equal(cuMemAllocFromPoolAsync(&b, 3 << 20, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    ok(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    ok(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &used));
    assert_int_equal(used, 1 << 20);
    assert_int_equal(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), CUDA_ERROR_INVALID_VALUE);
    ok(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a));
    assert_ptr_equal(got, pool);
    ok(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, a));
    assert_null(context);
    ok(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, a));
    assert_int_equal(capable, 0);
    ok(cuDeviceGetDefaultMemPool(&usual, 0));
    ok(cuMemAllocAsync(&b, 64, NULL));
    ok(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, b));
    assert_ptr_equal(got, usual);
    ok(cuDeviceSetMemPool(0, pool));
    ok(cuMemFreeAsync(b, NULL));
    ok(cuMemAllocAsync(&b, 64, NULL));
    ok(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, b));
    assert_ptr_equal(got, pool);
    assert_int_equal(cuMemPoolDestroy(usual), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemPoolDestroy(pool)); /* its memory stays until it is freed */
    assert_int_equal(COUNTER(live_pools), 0);
    ok(cuMemsetD8(a, 1, 64));
    ok(cuMemFreeAsync(a, NULL));
    ok(cuMemFree(b));
    ok(cuCtxSynchronize());
    assert_int_equal(COUNTER(live_allocations), 0);
    assert_int_equal(COUNTER(misuse), 0);
    assert_int_equal(cuMemAllocFromPoolAsync(&a, 64, pool, NULL), CUDA_ERROR_INVALID_VALUE);
    arm_fault("cuMemPoolCreate", 1, CUDA_ERROR_OUT_OF_MEMORY, false);
    assert_int_equal(cuMemPoolCreate(&pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
}

static const struct driver_test tests[] = {
    DRIVER_TEST(an_enabled_peer_is_reached),
    DRIVER_TEST(an_unasked_peer_is_not_reached),
    DRIVER_TEST(a_machine_without_peers),
    DRIVER_TEST(copies_between_devices),
    DRIVER_TEST(maps_are_open_to_the_devices_named),
    DRIVER_TEST(pool_access_is_the_pools),
    DRIVER_TEST(pools_tell_what_they_hold),
};

int main(int argc, char **argv)
{
    setenv("KOPS_STANDIN_DEVICES", "2", 1);
    return run_driver_tests(argc, argv, tests, sizeof(tests) / sizeof(*tests));
}

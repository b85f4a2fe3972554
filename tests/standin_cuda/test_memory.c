/* The stand-in driver within one process: memory, registration, maps, misuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
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

static void plain_names_refuse(void)
{
    CUresult (*old)(void *, unsigned) = (CUresult(*)(void *, unsigned))dlsym(RTLD_DEFAULT, "cuMemAlloc");
    unsigned address = 7;
    void *found;

    assert_non_null(old);
    assert_int_equal(old(&address, 64), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(address, 7);
    assert_non_null(strstr(row->last_misuse, "cuMemAlloc_v2"));
    ok(cuGetProcAddress("cuMemAlloc", &found, CUDA_VERSION, 0, NULL));
    assert_ptr_equal(found, dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
}

static const struct driver_test tests[] = {
    DRIVER_TEST(memory_repeats_handles), DRIVER_TEST(memory_is_never_zero), DRIVER_TEST(misuse_is_reported),
    DRIVER_TEST(memory_limit_is_kept),   DRIVER_TEST(host_registration),    DRIVER_TEST(vmm_maps),
    DRIVER_TEST(plain_names_refuse),
};

int main(int argc, char **argv)
{
    return run_driver_tests(argc, argv, tests, sizeof(tests) / sizeof(*tests));
}

/* Other processes' memory, and memory made for other processes. */
#include "support.h"

enum { N = 1000, BYTES = N * sizeof(float) };

CUDA_TEST(test_more_than_there_is_leaks_no_mapping)
{
    struct backend_import what = {.kind = MEMORY_CUDA_IPC, .size = BYTES + 1};
    const int64_t maps = counter(STANDIN_COUNTER_ipc_maps);
    struct backend_memory *m = NULL;
    struct error e;

    exporter_alloc(BYTES, 1, what.handle);
    assert_int_equal(backend->memory_import(device, &what, &m, &e), -1);
    assert_null(m);
    assert_int_equal(e.code, ERROR_OUT_OF_BOUNDS);
    assert_string_equal(e.details[0].key, "needed");
    assert_int_equal(e.details[0].number, BYTES + 1);
    assert_string_equal(e.details[1].key, "size");
    assert_int_equal(e.details[1].number, BYTES);
    assert_int_equal(counter(STANDIN_COUNTER_ipc_maps), maps + 1); /* it was opened to find out */
}

CUDA_TEST(test_a_driver_that_only_says_unknown_is_not_lost)
{
    struct backend_import what = {.kind = MEMORY_CUDA_IPC, .size = BYTES};
    struct backend_memory *m;

    exporter_alloc(BYTES, 1, what.handle);
    inject("cuIpcOpenMemHandle", 999 /* CUDA_ERROR_UNKNOWN */, false);
    MUST_FAIL(backend->memory_import(device, &what, &m, &e), ERROR_INVALID_HANDLE, "freed");
    assert_false(device->lost);
    import(what.handle, BYTES);
}

CUDA_TEST(test_a_failing_allocation_leaks_nothing)
{
    static const char *const steps[] = {"cuMemGetAllocationGranularity",
                                        "cuMemCreate",
                                        "cuMemAddressReserve",
                                        "cuMemMap",
                                        "cuMemSetAccess",
                                        "cuMemsetD8Async",
                                        "cuMemExportToShareableHandle"};
    struct backend_memory *m;
    int fd;

    for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        inject(steps[i], 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
        MUST_FAIL(backend->memory_alloc(device, BYTES, &m, &fd, &e), ERROR_OUT_OF_MEMORY, "");
        expect_memory_as_at_begin();
    }
    control->memory_limit = 8 << 20;
    MUST_FAIL(backend->memory_alloc(device, 16 << 20, &m, &fd, &e), ERROR_OUT_OF_MEMORY, "");
    control->memory_limit = 0;
    MUST_FAIL(backend->memory_alloc(device, UINT64_MAX, &m, &fd, &e), ERROR_OUT_OF_MEMORY, "");
}

ALL_TESTS_WITH(setup, teardown)

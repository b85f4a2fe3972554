/* Other processes' memory, and memory made for other processes. */
#include "support.h"

#include <fcntl.h>
#include <string.h>

enum { N = 1000, BYTES = N * sizeof(float) };

static const enum standin_counter_id live[] = {STANDIN_COUNTER_live_ipc_mappings, STANDIN_COUNTER_live_vmm_handles,
                                               STANDIN_COUNTER_live_vmm_reservations, STANDIN_COUNTER_live_vmm_maps,
                                               STANDIN_COUNTER_live_allocations};

enum { LIVE = sizeof(live) / sizeof(live[0]) };

static void count_live(int64_t *ret_counts)
{
    for (unsigned i = 0; i < LIVE; i++)
        ret_counts[i] = counter(live[i]);
}

static void test_more_than_there_is_leaks_no_mapping(void **state)
{
    struct backend_import what = {.kind = MEMORY_CUDA_IPC, .size = BYTES + 1};
    int64_t before = counter(STANDIN_COUNTER_live_ipc_mappings), maps = counter(STANDIN_COUNTER_ipc_maps);
    struct backend_memory *m = NULL;
    struct error e;

    (void)state;
    exporter_alloc(BYTES, 1, what.handle);
    assert_int_equal(backend->memory_import(device, &what, &m, &e), -1);
    assert_null(m);
    assert_int_equal(e.code, ERROR_OUT_OF_BOUNDS);
    assert_string_equal(e.details[0].key, "needed");
    assert_int_equal(e.details[0].number, BYTES + 1);
    assert_string_equal(e.details[1].key, "size");
    assert_int_equal(e.details[1].number, BYTES);
    assert_int_equal(counter(STANDIN_COUNTER_ipc_maps), maps + 1); /* it was opened to find out */
    assert_int_equal(counter(STANDIN_COUNTER_live_ipc_mappings), before);
}

static void expect_invalid(const unsigned char *handle)
{
    struct backend_import what = {.kind = MEMORY_CUDA_IPC, .size = BYTES};
    int64_t before = counter(STANDIN_COUNTER_live_ipc_mappings);
    struct backend_memory *m;
    struct error e;

    memcpy(what.handle, handle, sizeof(what.handle));
    assert_int_equal(backend->memory_import(device, &what, &m, &e), -1);
    assert_int_equal(e.code, ERROR_INVALID_HANDLE);
    assert_non_null(strstr(e.message, "freed"));
    assert_int_equal(counter(STANDIN_COUNTER_live_ipc_mappings), before);
    assert_false(device->lost);
}

static void test_a_driver_that_only_says_unknown_is_not_lost(void **state)
{
    unsigned char handle[BACKEND_IPC_HANDLE_SIZE];
    struct backend_memory *m;

    (void)state;
    exporter_alloc(BYTES, 1, handle);
    inject("cuIpcOpenMemHandle", 999 /* CUDA_ERROR_UNKNOWN */, false);
    expect_invalid(handle);
    m = import(handle, BYTES);
    close_memory(m);
}

static void test_a_failing_allocation_leaks_nothing(void **state)
{
    static const char *const steps[] = {"cuMemGetAllocationGranularity",
                                        "cuMemCreate",
                                        "cuMemAddressReserve",
                                        "cuMemMap",
                                        "cuMemSetAccess",
                                        "cuMemsetD8Async",
                                        "cuMemExportToShareableHandle"};
    int64_t before[LIVE], after[LIVE];
    struct backend_memory *m;
    struct error e;
    int fd;

    (void)state;
    count_live(before);
    for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        inject(steps[i], 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
        assert_int_equal(backend->memory_alloc(device, BYTES, &m, &fd, &e), -1);
        assert_int_equal(e.code, ERROR_OUT_OF_MEMORY);
        count_live(after);
        assert_memory_equal(before, after, sizeof(before));
    }
    control->memory_limit = 8 << 20;
    assert_int_equal(backend->memory_alloc(device, 16 << 20, &m, &fd, &e), -1);
    assert_int_equal(e.code, ERROR_OUT_OF_MEMORY);
    control->memory_limit = 0;
    assert_int_equal(backend->memory_alloc(device, UINT64_MAX, &m, &fd, &e), -1);
    assert_int_equal(e.code, ERROR_OUT_OF_MEMORY);
    count_live(after);
    assert_memory_equal(before, after, sizeof(before));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_more_than_there_is_leaks_no_mapping),
        cmocka_unit_test(test_a_driver_that_only_says_unknown_is_not_lost),
        cmocka_unit_test(test_a_failing_allocation_leaks_nothing),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}

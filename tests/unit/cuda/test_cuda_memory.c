/* Other processes' memory, and memory made for other processes. */
#include "support.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

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

static void test_another_process_s_memory_is_computed_on(void **state)
{
    struct backend_stream *stream = stream_open();
    unsigned char handle[BACKEND_IPC_HANDLE_SIZE];
    struct backend_memory *a, *out;
    struct test_job t;

    (void)state;
    exporter_alloc(BYTES, 0x40, handle); /* 0x40404040 is 3.00392 */
    a = import(handle, BYTES);
    assert_int_equal(a->size, BYTES);
    assert_int_equal(a->kind, MEMORY_CUDA_IPC);
    assert_ptr_equal(a->device, device);
    out = device_memory(BYTES);
    make_job(&t, OP_ADD, (struct view[]){VECTOR(a, N), VECTOR(a, N), VECTOR(out, N)});
    run_job(stream, &t);
    for (unsigned i = 0; i < N; i++)
        assert_true(floats(out)[i] == 2 * 3.00392150878906250f);
    backend->stream_free(stream);
    close_memory(a);
    close_memory(out);
    assert_int_equal(counter(STANDIN_COUNTER_live_ipc_mappings), 0);
}

static void test_the_true_size_is_found_out(void **state)
{
    unsigned char handle[BACKEND_IPC_HANDLE_SIZE];
    struct backend_memory *m;

    (void)state;
    exporter_alloc(BYTES, 1, handle);
    m = import(handle, 100);
    assert_int_equal(m->size, BYTES);
    close_memory(m);
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

static void test_bogus_and_freed_handles_are_refused(void **state)
{
    unsigned char handle[BACKEND_IPC_HANDLE_SIZE];

    (void)state;
    memset(handle, 0xa5, sizeof(handle));
    expect_invalid(handle);
    exporter_alloc(BYTES, 1, handle);
    exporter_free();
    expect_invalid(handle);
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

static void test_allocated_memory_is_zeroed_and_has_a_descriptor(void **state)
{
    struct backend_memory *m;
    struct error e;
    int fd = -1;

    (void)state;
    for (unsigned round = 0; round < 2; round++) {
        assert_int_equal(backend->memory_alloc(device, BYTES, &m, &fd, &e), 0);
        assert_true(m->size >= BYTES && m->writable && !m->host);
        assert_int_equal(m->kind, MEMORY_CUDA_VMM);
        assert_ptr_equal(m->device, device);
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        for (uint64_t i = 0; i < m->size / sizeof(float); i++)
            assert_true(floats(m)[i] == 0.0f);
        fill(m, N, 1);
        close(fd);
        close_memory(m);
    }
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

static void test_nothing_was_misused_or_left(void **state)
{
    (void)state;
    assert_int_equal(counter(STANDIN_COUNTER_misuse), 0);
    for (unsigned i = 0; i < LIVE; i++)
        assert_int_equal(counter(live[i]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_process_s_memory_is_computed_on),
        cmocka_unit_test(test_the_true_size_is_found_out),
        cmocka_unit_test(test_more_than_there_is_leaks_no_mapping),
        cmocka_unit_test(test_bogus_and_freed_handles_are_refused),
        cmocka_unit_test(test_a_driver_that_only_says_unknown_is_not_lost),
        cmocka_unit_test(test_allocated_memory_is_zeroed_and_has_a_descriptor),
        cmocka_unit_test(test_a_failing_allocation_leaks_nothing),
        cmocka_unit_test(test_nothing_was_misused_or_left),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}

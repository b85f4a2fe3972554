/* Results as records: the bytes of each kind of member, there and absent. */
#include <math.h>

#include "rpc/record.h"
#include "tests/support/unit.h"

static void check(struct rpc_output *out, const char *bytes, size_t n)
{
    assert_false(out->bytes.failed);
    assert_int_equal(buffer_length(&out->bytes), n);
    assert_memory_equal(out->bytes.data + out->bytes.start, bytes, n);
    rpc_output_free(out);
}
#define CHECK(out, bytes) check(out, bytes, sizeof(bytes) - 1)

TEST(absent_keys_are_not_counted)
{
    struct rpc_output out;

    rpc_output_init(&out, 4096);
    rpc_write_record(&out, RECORD(cache_reply, .removed = {true, 300}));
    CHECK(&out, "\x81\xa7removed\xcd\x01\x2c");
    rpc_output_init(&out, 4096);
    rpc_write_record(&out, RECORD(candidate_map, .variant = "v", .what = "w", .state = "s", .us = (double)NAN));
    CHECK(&out, "\x83\xa7variant\xa1v\xa4what\xa1w\xa5state\xa1s");
    rpc_output_init(&out, 4096);
    rpc_write_record(&out, RECORD(code_reply, .bytes = 1, .layout = {true, 0}));
    CHECK(&out, "\x82\xa5"
                "bytes\x01\xa6layout\x00");
}

TEST(lists_maps_and_nested_records)
{
    static const char *const names[] = {"a", "b"};
    static const struct rpc_number numbers[] = {{"x", 0.5}};
    const double no = (double)NAN;
    static const struct spread_map spread = {.min = 1};
    struct rpc_output out;

    rpc_output_init(&out, 4096);
    rpc_write_record(&out, RECORD(latency_map, .queue = {1, no, no, no, no, 0.5}, .device = {0, no, no, no, no, no},
                                  .total = {0, no, no, no, no, no}));
    CHECK(&out, "\x83\xa5queue\x82\xa5"
                "count\x01\xa3max\xcb\x3f\xe0\0\0\0\0\0\0\xa6"
                "device\x81\xa5"
                "count\x00\xa5total\x81\xa5"
                "count\x00");
    rpc_output_init(&out, 4096);
    rpc_write_record(&out, RECORD(attr_map, .name = "n", .type = "t", .default_ = {1, rpc_each_text, names},
                                  .choices = {2, rpc_each_text, names}, .doc = "d"));
    CHECK(&out, "\x85\xa4name\xa1n\xa4type\xa1t\xa7"
                "default\xa1"
                "a\xa7"
                "choices\x92\xa1"
                "a\xa1"
                "b\xa3"
                "doc\xa1"
                "d");
    rpc_output_init(&out, 4096);
    rpc_write_record(&out, RECORD(counters_reply, .verdict = "memory", .values = {1, rpc_each_number, numbers}));
    assert_non_null(
        memmem(out.bytes.data, out.bytes.end, "\xa6values\x81\xa1x\xcb\x3f\xe0\0\0\0\0\0\0\xa6stalls\x80", 27));
    assert_int_equal(out.bytes.data[0], 0x8a); /* without `launch` and `others` */
    rpc_output_free(&out);
    rpc_output_init(&out, 4096);
    rpc_write_record(&out, RECORD(row_map, .exec_us = &spread));
    assert_int_equal(out.bytes.data[0], 0x89);
    assert_non_null(memmem(out.bytes.data, out.bytes.end,
                           "\xa7"
                           "exec_us\x87\xa3min\xcb\x3f\xf0",
                           14));
    rpc_output_free(&out);
}

TEST(texts_are_utf8)
{
    struct rpc_output out;

    rpc_output_init(&out, 4096);
    rpc_write_record(&out, RECORD(metrics_reply, .text = "\xc3\xa4\xc3 \xff\xe2\x82"));
    CHECK(&out, "\x81\xa4text\xa7\xc3\xa4? ???");
    rpc_output_init(&out, 4096);
    rpc_write_record(&out, RECORD(metrics_reply, .text = NULL));
    CHECK(&out, "\x81\xa4text\xa0");
}

TEST(a_last_list_is_written_by_the_caller)
{
    struct rpc_output out;
    size_t at;

    rpc_output_init(&out, 4096);
    rpc_write_record(&out, RECORD(tuning_reply, .total = 2, .choices = {.n = UINT32_MAX}));
    at = buffer_length(&out.bytes);
    rpc_write_nil(&out);
    rpc_patch_array_head(&out, at, 1);
    CHECK(&out, "\x82\xa5total\x02\xa7"
                "choices\xdd\0\0\0\x01\xc0");
}

TEST(no_room)
{
    struct rpc_output out;

    for (size_t max = 0; max < 60; max++) { /* the record takes 37 bytes, and room for the longest of a value */
        rpc_output_init(&out, max);
        rpc_write_record(&out, RECORD(trim_reply, .unpinned = UINT64_MAX, .mappings = UINT64_MAX));
        assert_true(out.bytes.failed || buffer_length(&out.bytes) == 37);
        rpc_output_free(&out);
    }
    assert_false(out.bytes.failed);
}

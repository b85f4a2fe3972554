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
    static const char *const names[] = {"a", "b"};
    const double no = (double)NAN;
    struct rpc_output out;

    rpc_output_init(&out, 4096);
    rpc_write_record(&out, RECORD(cache_reply, .removed = {true, 300}));
    CHECK(&out, "\x81\xa7removed\xcd\x01\x2c");
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

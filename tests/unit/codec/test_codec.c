/* The codec's reader and writer at the borders between MessagePack's forms; everything else is tests/fuzz/codec.c's. */
#include "codec/read.h"
#include "codec/scan.h"
#include "codec/write.h"
#include "tests/support/unit.h"

/* What was written is one whole value, of `length` bytes. */
static void whole(const unsigned char *bytes, const unsigned char *end, size_t length)
{
    struct scan s;

    scan_reset(&s);
    assert_int_equal(scan_value(&s, bytes, (size_t)(end - bytes), 1 << 20), SCAN_COMPLETE);
    assert_int_equal(s.position, length);
    assert_int_equal(end - bytes, length);
    assert_ptr_equal(codec_skip(bytes), end);
}

TEST(integers_take_their_shortest_form)
{
    static const struct {
        int64_t value;
        size_t length;
    } cases[] = {{0, 1},      {127, 1},    {128, 2},        {255, 2},         {256, 3},
                 {65535, 3},  {65536, 5},  {UINT32_MAX, 5}, {1LL << 32, 9},   {INT64_MAX, 9},
                 {-1, 1},     {-32, 1},    {-33, 2},        {-128, 2},        {-129, 3},
                 {-32768, 3}, {-32769, 5}, {INT32_MIN, 5},  {-2147483649, 9}, {INT64_MIN, 9}};
    unsigned char bytes[CODEC_HEAD_MAX];
    struct codec_item item;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned char *end = bytes;

        codec_write_int64(&end, cases[i].value);
        whole(bytes, end, cases[i].length);
        codec_read(bytes, &item);
        assert_int_equal(item.type, cases[i].value < 0 ? CODEC_NEGATIVE : CODEC_UINT);
        assert_true(item.i == cases[i].value);
        assert_ptr_equal(item.next, end);
    }
}

/* A signed form may hold a number that is not negative. */
TEST(a_positive_number_is_one_in_every_form)
{
    static const unsigned char forms[][9] = {{0x05},       {0xcc, 5},          {0xd0, 5},
                                             {0xd1, 0, 5}, {0xd2, 0, 0, 0, 5}, {0xd3, 0, 0, 0, 0, 0, 0, 0, 5}};
    struct codec_item item;

    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        codec_read(forms[i], &item);
        assert_int_equal(item.type, CODEC_UINT);
        assert_int_equal(item.u, 5);
    }
}

TEST(texts_and_bins_of_every_length)
{
    static const struct {
        size_t length, text_head, bin_head;
    } cases[] = {{0, 1, 2}, {31, 1, 2}, {32, 2, 2}, {255, 2, 2}, {256, 3, 3}, {65535, 3, 3}, {65536, 5, 5}};
    unsigned char *bytes = malloc(CODEC_HEAD_MAX + 65536);
    char *text = malloc(65536);
    struct codec_item item;

    assert_true(bytes && text);
    memset(text, 'x', 65536);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned char *end = bytes;

        codec_write_text(&end, text, cases[i].length);
        whole(bytes, end, cases[i].text_head + cases[i].length);
        codec_read(bytes, &item);
        assert_int_equal(item.type, CODEC_STR);
        assert_int_equal(item.count, cases[i].length);
        end = bytes;
        codec_write_binary(&end, text, cases[i].length);
        whole(bytes, end, cases[i].bin_head + cases[i].length);
        codec_read(bytes, &item);
        assert_int_equal(item.type, CODEC_BIN);
        assert_memory_equal(item.text, text, cases[i].length);
    }
    free(text);
    free(bytes);
}

TEST(a_skipped_value_takes_its_children_along)
{
    /* [{"a": [1, 2.5]}, [], {}, 7], then 9 */
    static const unsigned char bytes[] = {0x94, 0x81, 0xa1, 'a', 0x92, 0x01, 0xca, 0x40, 0x20, 0, 0, 0x90, 0x80, 7, 9};
    struct codec_item item;

    assert_ptr_equal(codec_skip(bytes), bytes + 14);
    codec_read(bytes, &item);
    assert_int_equal(item.count, 4);
    assert_ptr_equal(codec_skip(item.next), bytes + 11);
    codec_read(bytes + 6, &item);
    assert_true(item.f == 2.5);
}

TEST(a_key_is_found_wherever_the_search_begins)
{
    static const struct codec_key keys[] = {{"op", 2}, {"in", 2}, {"out", 3}, {"o", 1}};
    static const unsigned char in[] = {0xa2, 'i', 'n', 0}, long_form[] = {0xd9, 2, 'i', 'n', 0},
                               zero[] = {0xa3, 'i', 'n', 0, 0}, number[] = {5};
    struct codec_item key;

    for (unsigned from = 0; from < 6; from++) {
        assert_int_equal(codec_find(in, keys, sizeof(keys[0]), 4, from, &key), 1);
        assert_ptr_equal(key.next, in + 3);
        assert_int_equal(codec_find(long_form, keys, sizeof(keys[0]), 4, from, &key), 1);
        assert_ptr_equal(key.next, long_form + 4);
        assert_int_equal(codec_find(zero, keys, sizeof(keys[0]), 4, from, &key), -1);
        assert_int_equal(codec_find(number, keys, sizeof(keys[0]), 4, from, &key), -1);
        assert_int_equal(key.type, CODEC_UINT);
    }
    assert_int_equal(codec_find(in, keys, sizeof(keys[0]), 0, 0, &key), -1);
}

TEST(only_a_maps_own_key_claims_descriptors)
{
    /* {"a": {"nfds": 3}}, {"a": "nfds", "nfds": 2}, {"nfds": 17}, {"nfds": "x"} */
    static const unsigned char nested[] = {0x81, 0xa1, 'a', 0x81, 0xa4, 'n', 'f', 'd', 's', 3},
                               own[] = {0x82, 0xa1, 'a', 0xa4, 'n', 'f', 'd', 's', 0xa4, 'n', 'f', 'd', 's', 2},
                               many[] = {0x81, 0xa4, 'n', 'f', 'd', 's', 17},
                               text[] = {0x81, 0xa4, 'n', 'f', 'd', 's', 0xa1, 'x'};

    assert_int_equal(codec_nfds(nested, nested + sizeof(nested), 16), 0);
    assert_int_equal(codec_nfds(own, own + sizeof(own), 16), 2);
    assert_int_equal(codec_nfds(many, many + sizeof(many), 16), -1);
    assert_int_equal(codec_nfds(text, text + sizeof(text), 16), -1);
}

/* The codec at lengths beyond those of the fuzzer's messages, and keys that look like another: everything else is
 * tests/fuzz/codec.c's. */
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

TEST(long_texts_and_bins)
{
    static const struct {
        size_t length, text_head, bin_head;
    } cases[] = {{255, 2, 2}, {256, 3, 3}, {65535, 3, 3}, {65536, 5, 5}};
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

TEST(only_a_maps_own_key_claims_descriptors)
{
    /* {"a": {"nfds": 3}}, {"a": "nfds", "nfds": 2} */
    static const unsigned char nested[] = {0x81, 0xa1, 'a', 0x81, 0xa4, 'n', 'f', 'd', 's', 3},
                               own[] = {0x82, 0xa1, 'a', 0xa4, 'n', 'f', 'd', 's', 0xa4, 'n', 'f', 'd', 's', 2};

    assert_int_equal(codec_nfds(nested, nested + sizeof(nested), 16), 0);
    assert_int_equal(codec_nfds(own, own + sizeof(own), 16), 2);
}

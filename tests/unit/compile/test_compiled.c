/* Compiled code as bytes, and texts that others see. Nothing here needs a compiler. */
#include <math.h>
#include <stdio.h>

#include "compile/helper_wire.h"
#include "tests/support/unit.h"

static struct compiled *example(void)
{
    struct compiled *c = compiled_new();

    assert_non_null(c);
    memset(c->key, 0xab, sizeof(c->key));
    snprintf(c->arch, sizeof(c->arch), "%s", "sm_90a");
    snprintf(c->compiler, sizeof(c->compiler), "%s", "NVRTC 13.0");
    c->compile_us = 1234.5;
    c->log = strdup("a warning");
    c->n_entries = 2;
    c->entries = calloc(2, sizeof(*c->entries));
    c->entries[0] = (struct compiled_entry){.name = strdup("scale<float>"),
                                            .lowered = strdup("_Z5scaleIfEvPT_"),
                                            .registers = 30,
                                            .shared_bytes = 1024,
                                            .max_threads = 256,
                                            .n_params = 3,
                                            .param_sizes = {8, 1, 4},
                                            .param_offsets = {0, 8, 12}};
    c->entries[1] = (struct compiled_entry){
        .name = strdup("plain"), .lowered = strdup("plain"), .local_bytes = 16, .const_bytes = 64};
    c->image_size = 100;
    c->image = malloc(c->image_size);
    memset(c->image, 7, c->image_size);
    return c;
}

static struct buffer serialized(const struct compiled *c)
{
    struct buffer b;

    buffer_init(&b, 1 << 20);
    compiled_serialize(c, &b);
    assert_false(b.failed);
    return b;
}

TEST(test_round_trip)
{
    struct compiled *c = example(), *back;
    struct buffer b = serialized(c), again;

    MUST(compiled_parse(b.data, b.end, &back, &e));
    assert_memory_equal(back->key, c->key, sizeof(c->key));
    assert_texts(back->arch, "sm_90a", back->log, "a warning", back->entries[0].lowered, "_Z5scaleIfEvPT_");
    assert_true(back->compile_us == 1234.5 && back->n_entries == 2 && back->image_size == 100);
    assert_true(back->entries[0].param_sizes[1] == 1 && back->entries[0].param_offsets[2] == 12);
    assert_int_equal(back->entries[1].const_bytes, 64);
    again = serialized(back);
    assert_int_equal(again.end, b.end);
    assert_memory_equal(again.data, b.data, b.end);
    assert_true(compiled_memory(back) > 100);
    MUST_FAIL(compiled_verify(back, &e), ERROR_INVALID_ARGUMENT, ""); /* a hundred bytes are no cubin */
    assert_ptr_equal(compiled_ref(back), back);
    compiled_unref(back);
    assert_null(compiled_unref(back));
    compiled_unref(c);
    buffer_free(&b);
    buffer_free(&again);
}

static void refuse(const void *bytes, size_t size)
{
    struct compiled *c = NULL;

    MUST_FAIL(compiled_parse(bytes, size, &c, &e), ERROR_INVALID_ARGUMENT, "");
    assert_null(c);
}

TEST(test_cut_off_or_longer)
{
    struct compiled *c = example();
    struct buffer b = serialized(c);

    for (size_t n = 0; n < b.end; n++) {
        unsigned char *exact = malloc(n + 1); /* the byte behind it is for a sanitizer to watch */

        memcpy(exact, b.data, n);
        refuse(exact, n);
        free(exact);
    }
    buffer_append(&b, "", 1);
    refuse(b.data, b.end);
    buffer_free(&b);
    compiled_unref(c);
}

/* Each change makes a struct that must not come back. */
TEST(test_broken_contents)
{
    for (unsigned i = 0; i < 10; i++) {
        struct compiled *c = example();
        struct compiled_entry *const e = c->entries;
        struct buffer b;

        if (i < 2)
            c->compile_us = i ? -1 : (double)NAN;
        else if (i == 2)
            snprintf(c->arch, sizeof(c->arch), "sm\n90");
        else if (i == 3)
            snprintf(c->compiler, sizeof(c->compiler), "\xff");
        else if (i == 4)
            e[1].name[0] = '\0';
        else if (i == 5)
            e[0].lowered[0] = '\0';
        else if (i == 6) /* which overlaps */
            e[0].param_offsets[1] = 7;
        else if (i < 9)
            e[0].param_sizes[2] = i == 7 ? COMPILED_MAX_PARAM_BYTES : UINT32_MAX;
        else
            c->image_size = 0;
        b = serialized(c);
        refuse(b.data, b.end);
        buffer_free(&b);
        compiled_unref(c);
    }
}

TEST(test_text_clean)
{
    static const struct {
        const char *dirty, *clean;
    } cases[] = {
        {"plain\ttext\n", "plain\ttext\n"},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"a\x01\x1b[31m\x7f", "a??[31m?"},
        {"\xff\xc3", "??"},
        {"\xc3(", "?("},
        {"\xe2\x82", "??"},
        {"\xc0\x80\xed\xa0\x80", "?????"},
        {"\xf8\x88\x80\x80\x80", "?????"},
        {"\xf4\x90\x80\x80", "????"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *text = strdup(cases[i].dirty);

        assert_int_equal(text_clean(text, strlen(text)), strcmp(cases[i].dirty, cases[i].clean) != 0);
        assert_string_equal(text, cases[i].clean);
        free(text);
    }
}

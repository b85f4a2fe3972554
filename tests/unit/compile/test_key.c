/* The name of a module: everything that decides what the compiler makes changes it, and nothing else does. */
#include "cache_support.h"

enum { VARIANTS = 24 };

static const char *const options[] = {"--ftz=true", "--fmad=false", "--ftz=true--fmad=false"};
static const char *const entries[] = {"f", "g", "fg"}, *const turned[] = {"g", "f"};
static const struct compile_file files[] = {{"a.h", "1", 1}, {"b.h", "22", 2}};
static const struct compile_file files_turned[] = {{"b.h", "22", 2}, {"a.h", "1", 1}};
static const struct compile_file files_shifted[] = {{"a.h", "12", 2}, {"b.h", "2", 1}};
static const struct compile_file files_renamed[] = {{"a.h", "1", 1}, {"c.h", "22", 2}};
static const struct compile_file files_swapped[] = {{"a.h", "22", 2}, {"b.h", "1", 1}};

static struct compile_input base(void)
{
    return (struct compile_input){"k.cu", "source", 6, files, 2, options, 2, entries, 2, "sm_90a"};
}

TEST(everything_counts)
{
    unsigned char keys[VARIANTS][KEY_BYTES];
    struct compile_input in;
    unsigned n = 0;

#define VARIANT(...)                                                                                                   \
    do {                                                                                                               \
        in = base();                                                                                                   \
        __VA_ARGS__;                                                                                                   \
        key_make(&in, "NVRTC 13.0 build 1", keys[n++]);                                                                \
    } while (0)
    VARIANT((void)0);
    VARIANT(in.name = "l.cu");
    VARIANT(in.source = "sourcf");
    VARIANT(in.length = 5);
    VARIANT(in.files = files_shifted);
    VARIANT(in.files = files_renamed);
    VARIANT(in.files = files_swapped);
    VARIANT(in.n_files = 1);
    VARIANT(in.n_files = 0);
    VARIANT(in.n_options = 1);
    VARIANT(in.n_options = 0);
    VARIANT(in.options = options + 1);
    VARIANT(in.options = options + 2, in.n_options = 1);
    VARIANT(in.n_entries = 1);
    VARIANT(in.entries = turned);
    VARIANT(in.entries = entries + 2, in.n_entries = 1);
    VARIANT(in.arch = "sm_90");
#undef VARIANT
    in = base();
    key_make(&in, "NVRTC 13.0 build 2", keys[n++]);
    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < i; k++)
            if (!memcmp(keys[i], keys[k], KEY_BYTES))
                fail_msg("variants %u and %u have the same key", i, k);
}

TEST(order_of_files_does_not)
{
    unsigned char a[KEY_BYTES], b[KEY_BYTES];
    struct compile_input in = base();

    key_make(&in, "c", a);
    in.files = files_turned;
    key_make(&in, "c", b);
    assert_memory_equal(a, b, KEY_BYTES);
}

/* Another value here makes every file in every cache useless: then the format's number must change, too. */
TEST(stays_the_same_for_ever)
{
    static const char expected[] = "f7615b810168d082b1ed155c2296ca63c5e4ac24203f53299c6cb986170bb7ca";
    unsigned char key[KEY_BYTES];
    struct compile_input in = base();
    char hex[KEY_HEX + 1];

    key_make(&in, "NVRTC 13.0", key);
    key_to_hex(key, hex);
    assert_string_equal(hex, expected);
}

TEST(reads_hexadecimal)
{
    unsigned char key[KEY_BYTES], back[KEY_BYTES];
    char hex[KEY_HEX + 2];

    module_key(3, key);
    key_to_hex(key, hex);
    assert_true(key_from_hex(hex, back));
    assert_memory_equal(key, back, KEY_BYTES);
    hex[KEY_HEX] = '0';
    hex[KEY_HEX + 1] = '\0';
    assert_false(key_from_hex(hex, back));
    hex[KEY_HEX - 1] = '\0';
    assert_false(key_from_hex(hex, back));
    key_to_hex(key, hex);
    hex[7] = 'g';
    assert_false(key_from_hex(hex, back));
    hex[7] = 'A';
    assert_false(key_from_hex(hex, back));
    assert_false(key_from_hex("", back));
}

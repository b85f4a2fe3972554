/* Signed modules and the keys that sign them: what is right comes back, whatever else is refused with its reason. */
#include <sys/stat.h>

#include "compile/signed.h"
#include "support.h"

#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"

enum { NOW = 2000000000 };

static const char *folder;
static struct signing_key keys[2];

static int set_up(void **state)
{
    folder = folder_new();
    MUST(signing_key_make(folder_path(folder, "key0"), &keys[0], &e));
    MUST(signing_key_make(folder_path(folder, "key1"), &keys[1], &e));
    keep_opened();
    return 0;
}

static int tear_down(void **state)
{
    close_kept();
    return 0;
}

static struct signed_trust trust_of(unsigned i)
{
    struct signed_trust t = {.n = 1};

    memcpy(t.keys[0], keys[i].public, SIGNING_PUBLIC_BYTES);
    return t;
}

static struct buffer sign(unsigned seed, unsigned by)
{
    struct compiled *c = module_new(seed, 1000);
    struct buffer b;

    buffer_init(&b, SIGNED_MAX);
    assert_int_equal(signed_make(c, &keys[by], NOW, &b), 0);
    compiled_unref(c);
    return b;
}

static void refused(const unsigned char *bytes, size_t size, const struct signed_trust *trust, unsigned seed,
                    uint64_t now, const char *why)
{
    struct compiled *none = NULL;
    unsigned char key[KEY_BYTES];

    module_key(seed, key);
    MUST_FAIL(signed_open(bytes, size, trust, key, now, &none, &e), ERROR_INVALID_ARGUMENT, why);
    assert_null(none);
}

static void buffer_refused(const struct buffer *b, const struct signed_trust *trust, unsigned seed, uint64_t now,
                           const char *why)
{
    refused(b->data + b->start, buffer_length(b), trust, seed, now, why);
}

/* Module 1 comes back. */
static void taken(const struct buffer *b, const struct signed_trust *trust, uint64_t now)
{
    struct compiled *wanted = module_new(1, 1000), *c;

    MUST(signed_open(b->data + b->start, buffer_length(b), trust, wanted->key, now, &c, &e));
    assert_same_module(c, wanted);
    compiled_unref(c);
    compiled_unref(wanted);
}

TEST(every_bit_counts)
{
    struct signed_trust trust = trust_of(0);
    struct buffer b = sign(1, 0);
    unsigned char *bytes = b.data + b.start;
    const size_t size = buffer_length(&b);

    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= (unsigned char)(1 << i % 8);
        refused(bytes, size, &trust, 1, NOW, "");
        bytes[i] ^= (unsigned char)(1 << i % 8);
    }
    for (size_t n = 0; n < size; n++) { /* in memory of its own, so that a sanitizer sees what is read */
        unsigned char *part = malloc(n ? n : 1);

        memcpy(part, bytes, n);
        refused(part, n, &trust, 1, NOW, "");
        free(part);
    }
    buffer_free(&b);
}

TEST(others)
{
    struct signed_trust trust = trust_of(0), nobody = {0}, both = trust_of(1);
    struct buffer b = sign(1, 0), by_other = sign(1, 1);
    struct compiled *c = module_new(1, 1000);

    buffer_refused(&b, &trust, 2, NOW, "another key's module");
    buffer_refused(&by_other, &trust, 1, NOW, "which is not trusted");
    buffer_refused(&b, &nobody, 1, NOW, "which is not trusted");
    memcpy(by_other.data + by_other.start + 16, keys[0].public, SIGNING_PUBLIC_BYTES); /* it says it were the other's */
    buffer_refused(&by_other, &trust, 1, NOW, "its signature is wrong");
    memcpy(both.keys[both.n++], keys[0].public, SIGNING_PUBLIC_BYTES); /* a rotation: both count */
    taken(&b, &both, NOW);
    trust.max_age_s = 100;
    for (int64_t passed = -1000; passed <= 100; passed += 100) /* also by a clock that is behind */
        taken(&b, &trust, (uint64_t)(NOW + passed));
    buffer_refused(&b, &trust, 1, NOW + 101, "too old");
    buffer_append(&b, "", 1);
    buffer_refused(&b, &trust, 1, NOW, "something stands behind it");
    buffer_free(&b);
    buffer_free(&by_other);
    /* A signer that is trusted signs nonsense: still no binary reaches a device that its description does not fit. */
    memcpy(c->image, "bad", 3);
    buffer_init(&b, SIGNED_MAX);
    assert_int_equal(signed_make(c, &keys[0], NOW, &b), 0);
    buffer_refused(&b, &trust, 1, NOW, "no such kernel");
    compiled_unref(c);
    buffer_free(&b);
}

TEST(keys_and_their_files)
{
    const char *path = folder_path(folder, "key0");
    struct signing_key again, other;
    unsigned char public[SIGNING_PUBLIC_BYTES];
    char word[SIGNING_WORD_SIZE];
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    MUST(signing_key_read(path, &again, &e));
    assert_memory_equal(&again, &keys[0], sizeof(again));
    MUST_FAIL(signing_key_make(path, &other, &e), ERROR_INVALID_ARGUMENT, "File exists"); /* never overwritten */
    signing_public_print(keys[0].public, word);
    MUST(signing_public_parse(word, public, &e));
    assert_memory_equal(public, keys[0].public, sizeof(public));
    MUST_FAIL(signing_public_parse("ed25519:00", public, &e), ERROR_INVALID_ARGUMENT, "");
    MUST_FAIL(signing_public_parse("ed25519-private:00", public, &e), ERROR_INVALID_ARGUMENT, "private key");
    assert_int_equal(chmod(path, 0640), 0);
    MUST_FAIL(signing_key_read(path, &again, &e), ERROR_INVALID_ARGUMENT, "make it 0600");
    assert_int_equal(chmod(path, 0600), 0);
    MUST_FAIL(signing_key_read("/nonexistent/key", &again, &e), ERROR_INVALID_ARGUMENT, "");
    MUST_FAIL(signing_key_read(folder, &again, &e), ERROR_INVALID_ARGUMENT, "");
}

/* Files of other modes: keys_and_their_files. */
TEST(files_that_are_no_keys)
{
    static const char *const texts[] = {"",
                                        "# only a comment\n",
                                        "ed25519-private:\n",
                                        "ed25519-private:00\n",
                                        ("ed25519:" ZEROS "\n"),
                                        ("ed25519-private:" ZEROS " and more\n"),
                                        ("ed25519-private:0G" ZEROS)};
    struct signing_key k;

    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const char *path = folder_put(folder, "bad", texts[i]);

        assert_int_equal(chmod(path, 0600), 0);
        MUST_FAIL(signing_key_read(path, &k, &e), ERROR_INVALID_ARGUMENT, "");
    }
}

TEST(credentials)
{
    static const struct {
        const char *text, *value; /* NULL: refused */
    } cases[] = {{"bearer abc.def\nmore\n", "Bearer abc.def"},
                 {"basic Aladdin:open sesame\r\n", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="}, /* RFC 7617 */
                 {"bearer \n", NULL},
                 {"basic nobody\n", NULL},
                 {"bearer a\tX-Other: b\n", NULL},
                 {"secret\n", NULL}};
    char value[SECRET_FILE_SIZE];
    struct error e;

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *path = folder_put(folder, "c", cases[i].text);

        assert_int_equal(chmod(path, 0600), 0);
        if (secret_file_authorization(path, value, &e) != (cases[i].value ? 0 : -1))
            fail_msg("%s", cases[i].text);
        if (cases[i].value)
            assert_string_equal(value, cases[i].value);
    }
    assert_null(strstr(e.message, "secret\"")); /* the secret is in no message */
}

ALL_TESTS_WITH(set_up, tear_down)

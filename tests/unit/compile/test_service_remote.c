/* A cache that machines share: who is asked when, who wins, what is refused, what is sent. */
#include <stdio.h>
#include <time.h>

#include "compile/signed.h"
#include "fake_compiler.h"
#include "fake_remote.h"
#include "service_support.h"

enum { FOREVER_MS = 1000000 };

static struct signing_key key;

static int make_keys(void **state)
{
    MUST(signing_key_make(folder_path(folder_new(), "key"), &key, &e));
    return loop_open(state);
}

static struct code_remote_config remote_of(unsigned wait_ms, bool publishes)
{
    struct code_remote_config c = {
        .server = {.url = "http://fake"}, .trust = {.n = 1}, .publishes = publishes, .key = key, .wait_ms = wait_ms};

    memcpy(c.trust.keys[0], key.public, SIGNING_PUBLIC_BYTES);
    return c;
}

static struct code_service *fresh(const char *directory, unsigned wait_ms, bool publishes)
{
    struct code_remote_config c = remote_of(wait_ms, publishes);
    struct code_service *s;

    fake_reset("fake 1");
    fake_remote_reset();
    s = service_open(directory);
    code_service_use_remote(s, &c);
    assert_int_equal(fake_remote_servers(), 1);
    return s;
}

static struct code_remote_counters counters(const struct code_service *s)
{
    struct code_remote_counters n;
    struct remote_report report;

    assert_true(code_service_remote(s, &n, &report));
    return n;
}

static void until_asked(unsigned n)
{
    while (fake_remote_waiting() < n)
        uv_run(&loop, UV_RUN_ONCE);
}

static void compile_here(struct asker *a)
{
    until_compiling(1);
    fake_succeed(module_new(3, 1000));
    until_answered(a);
    assert_int_equal(a->origin, CODE_COMPILED);
}

/* The key of a source is what the service made of it: a first asker without a shared cache learns it. */
static void key_of(const char *source, unsigned char ret_key[KEY_BYTES])
{
    struct code_service *s;
    struct asker a = {0};

    fake_reset("fake 1");
    s = service_open(NULL);
    ask(&a, s, source);
    until_compiling(1);
    fake_succeed(module_new(1, 1000));
    until_answered(&a);
    memcpy(ret_key, a.compiled->key, KEY_BYTES);
    close_now(s);
    fake_reset("fake 1");
}

/* A module for that source, as another machine has signed it; its bytes go with the test. */
static struct buffer sign(const char *source, unsigned seed)
{
    struct compiled *c = module_new(seed, 1000);
    struct buffer body;

    key_of(source, c->key);
    buffer_init(&body, SIGNED_MAX);
    assert_int_equal(signed_make(c, &key, (uint64_t)time(NULL), &body), 0);
    compiled_unref(c);
    opened(body.data, free);
    return body;
}

static void answer(const struct buffer *b)
{
    fake_remote_answer(b->data + b->start, buffer_length(b));
}

OPENING_TEST(without_a_key_nothing_is_sent)
{
    struct code_service *s = fresh(NULL, FOREVER_MS, false);
    struct asker a = {0};

    ask(&a, s, "a");
    until_asked(1);
    fake_remote_miss();
    until_compiling(1);
    fake_succeed(module_new(3, 1000));
    until_answered(&a);
    until_idle();
    assert_int_equal(fake_remote_puts(), 0);
    assert_int_equal(counters(s).upload_drops, 0);
}

/* The compiler is done while the answer is being looked at. */
OPENING_TEST(a_race_to_the_end)
{
    const struct buffer body = sign("a", 7);
    struct code_service *s = fresh(NULL, 0, false);
    struct asker a = {0};

    ask(&a, s, "a");
    until_compiling(1);
    answer(&body);                     /* to the pool */
    fake_succeed(module_new(3, 1000)); /* before its result is seen */
    assert_int_equal(a.answers, 1);
    assert_int_equal(a.origin, CODE_COMPILED);
    until_idle();
    assert_int_equal(a.answers, 1);
    assert_int_equal(fake_remote_good(), 1); /* it was right, and counts as that */
}

OPENING_TEST(a_source_that_is_wrong_ends_the_question)
{
    struct code_service *s = fresh(NULL, 0, true);
    struct asker a = {0};

    ask(&a, s, "a");
    until_compiling(1);
    fake_fail("source", "k.cu(1): error");
    until_answered(&a);
    assert_null(a.compiled);
    assert_int_equal(fake_remote_waiting(), 0);
    assert_int_equal(fake_remote_late(), 0); /* that is nothing against it */
    assert_int_equal(fake_remote_cancelled(), 1);
    until_idle();
    assert_int_equal(fake_remote_puts(), 0);
}

OPENING_TEST(where_it_rests_compiles_begin_at_once)
{
    const char *directory = folder_new();

    for (unsigned disk = 0; disk < 2; disk++) {
        struct code_service *s = fresh(disk ? directory : NULL, FOREVER_MS, true);
        struct asker a = {0};

        fake_remote_rest();
        ask(&a, s, "a");
        compile_here(&a);
        until_idle();
        assert_int_equal(counters(s).upload_drops, 1);
        close_now(s);
    }
}

OPENING_TEST(those_who_go_away)
{
    struct code_service *s = fresh(NULL, FOREVER_MS, true);
    struct asker a = {0}, b = {0};
    struct buffer body;

    ask(&a, s, "a");
    ask(&b, s, "a");
    until_asked(1);
    code_request_cancel(a.request);
    assert_int_equal(fake_remote_waiting(), 1);
    code_request_cancel(b.request);
    assert_int_equal(fake_remote_waiting(), 0);
    assert_int_equal(fake_remote_cancelled(), 1);
    close_now(s);

    body = sign("a", 7);
    s = fresh(NULL, FOREVER_MS, true);
    ask(&a, s, "a");
    until_asked(1);
    answer(&body); /* and while the answer is looked at */
    code_request_cancel(a.request);
    until_idle();
    assert_int_equal(a.answers + b.answers, 0);
    assert_int_equal(fake_begun(), 0);
}

/* A change of settings, or the end, at any time. */
OPENING_TEST(it_goes_while_it_is_asked)
{
    enum { TO_NONE, TO_ANOTHER, THE_END, KINDS };
    const struct buffer body = sign("a", 7);

    for (unsigned kind = 0; kind < KINDS; kind++) {
        for (unsigned looked_at = 0; looked_at < 2; looked_at++) {
            struct code_service *s = fresh(NULL, FOREVER_MS, true);
            struct code_remote_config none = {0}, another = remote_of(FOREVER_MS, true);
            struct asker a = {0};

            another.server.url = "http://another";
            ask(&a, s, "a");
            until_asked(1);
            if (looked_at)
                answer(&body);
            if (kind == THE_END) {
                close_now(s);
                assert_int_equal(a.answers, 0);
                continue;
            }
            code_service_use_remote(s, kind == TO_NONE ? &none : &another);
            assert_int_equal(fake_remote_servers(), kind == TO_NONE ? 1 : 2);
            compile_here(&a);
            close_now(s);
        }
    }
}

OPENING_TEST(uploads_are_bounded)
{
    enum { MANY = 70, BOUND = 64 };
    struct code_service *s = fresh(NULL, FOREVER_MS, true);

    for (unsigned i = 0; i < MANY; i++) {
        struct asker a = {0};
        char source[16];

        snprintf(source, sizeof(source), "source %u", i);
        ask(&a, s, source);
        until_asked(1);
        fake_remote_miss();
        until_compiling(1);
        fake_succeed(module_new(i, 1000));
        until_answered(&a);
    }
    until_idle();
    assert_int_equal(fake_remote_puts(), BOUND);
    assert_int_equal(counters(s).upload_drops, MANY - BOUND);
    for (unsigned i = 0; i < 10; i++)
        fake_remote_put_done(true);
    assert_int_equal(counters(s).uploads, 10);
    close_now(s); /* with those that are on their way */
}

ALL_TESTS_WITH(make_keys, loop_close)

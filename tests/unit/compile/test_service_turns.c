/* Whose source is compiled next, where more wait than there are compilers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_compiler.h"
#include "service_support.h"

enum { COMPILERS = 2 };

static struct code_service *service_of_few(const char *directory)
{
    const struct code_service_config config = {.compiler.helpers = COMPILERS,
                                               .directory = directory,
                                               .disk_bytes = 1 << 20,
                                               .memory_bytes = 1 << 20,
                                               .source_bytes = 1000};
    struct code_service *s;
    struct error e;

    fake_reset("fake 1");
    s = code_service_new(&loop, &config, &e);
    assert_non_null(s);
    return s;
}

/* The loop reads the disk before the next one asks, so the order is that of the calls. */
static void ask_as(struct asker *asker, struct code_service *s, uint64_t owner, const char *source)
{
    ask_of(asker, s, owner, source);
    uv_run(&loop, UV_RUN_DEFAULT);
}

/* Ends the oldest compile. What is begun in its place has this source. */
static void expect_next(unsigned seed, const char *source)
{
    unsigned begun = fake_begun();

    fake_succeed(module_new(seed, 1000));
    assert_int_equal(fake_begun(), begun + (source ? 1 : 0));
    if (source)
        assert_string_equal(fake_last()->source, source);
}

static void owners_take_turns(void **state)
{
    static const char *const many[] = {"m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"};
    const char *directory = directory_new();

    (void)state;
    for (unsigned disk = 0; disk < 2; disk++) {
        struct code_service *s = service_of_few(disk ? directory : NULL);
        struct asker a[8] = {0}, b[2] = {0}, c = {0}, shared = {0};

        for (unsigned i = 0; i < 8; i++)
            ask_as(&a[i], s, 1, many[i]);
        assert_int_equal(fake_waiting(), COMPILERS); /* the compiler has no more than it can do at one time */
        ask_as(&b[0], s, 2, "b0");
        ask_as(&b[1], s, 2, "b1");
        expect_next(1, "m2");
        expect_next(2, "b0");
        ask_as(&c, s, 3, "c0");
        ask_as(&shared, s, 3, "m7"); /* whoever joins brings the own turn along */
        expect_next(3, "m3");
        expect_next(4, "b1");
        expect_next(5, "c0");
        expect_next(6, "m4");
        expect_next(7, "m7");
        expect_next(8, "m5");
        expect_next(9, "m6");
        expect_next(10, NULL);
        expect_next(11, NULL);
        assert_int_equal(fake_waiting(), 0);
        uv_run(&loop, UV_RUN_DEFAULT);
        for (unsigned i = 0; i < 8; i++) {
            assert_int_equal(a[i].answers, 1);
            asker_clear(&a[i]);
        }
        for (unsigned i = 0; i < 2; i++)
            asker_clear(&b[i]);
        asker_clear(&c);
        asker_clear(&shared);
        service_close(s);
    }
    directory_remove(directory);
}

static void those_who_leave_make_room(void **state)
{
    struct code_service *s = service_of_few(NULL);
    struct asker a[5] = {0};
    static const char *const sources[] = {"a", "b", "c", "d", "e"};

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        ask_as(&a[i], s, i, sources[i]);
    code_request_cancel(a[3].request); /* it waits: nothing was begun */
    assert_int_equal(fake_begun(), COMPILERS);
    assert_int_equal(fake_cancelled(), 0);
    code_request_cancel(a[0].request);
    assert_int_equal(fake_cancelled(), 1);
    assert_int_equal(fake_waiting(), COMPILERS);
    assert_string_equal(fake_last()->source, "c");
    fake_fail("source", "error");
    assert_string_equal(fake_last()->source, "e");
    assert_int_equal(fake_waiting(), COMPILERS);
    service_close(s); /* with two that compile */
    for (unsigned i = 0; i < 5; i++)
        asker_clear(&a[i]);
}

static void closing_while_some_wait(void **state)
{
    struct code_service *s = service_of_few(NULL);
    struct asker a[4] = {0};
    static const char *const sources[] = {"a", "b", "c", "d"};

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        ask_as(&a[i], s, 1, sources[i]);
    service_close(s);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(a[i].answers, 0);
}

static void without_memory_later(void **state)
{
    struct code_service *s = service_of_few(NULL);
    struct asker a[4] = {0};
    static const char *const sources[] = {"a", "b", "c", "d"};

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        ask_as(&a[i], s, 1, sources[i]);
    fake_short_of_memory();
    code_request_cancel(a[0].request);
    assert_int_equal(a[2].code, ERROR_OUT_OF_MEMORY);
    assert_int_equal(a[3].code, ERROR_OUT_OF_MEMORY);
    assert_int_equal(a[1].answers, 0);
    fake_succeed(module_new(1, 1000));
    assert_int_equal(a[1].answers, 1);
    asker_clear(&a[1]);
    service_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owners_take_turns),
        cmocka_unit_test(those_who_leave_make_room),
        cmocka_unit_test(closing_while_some_wait),
        cmocka_unit_test(without_memory_later),
    };
    int failures;

    uv_loop_init(&loop);
    failures = cmocka_run_group_tests(tests, NULL, NULL);
    return uv_loop_close(&loop) || failures;
}

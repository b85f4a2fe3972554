/* Whose source is compiled next, where more wait than there are compilers, and whose is interrupted. The service's
 * clock stands still but for the test. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "compile/turns.h"
#include "fake_compiler.h"
#include "service_support.h"

enum { COMPILERS = 2, TIME_S = 1 };

static struct timespec now = {.tv_sec = 1000};

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time);

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time)
{
    (void)clock;
    *ret_time = now;
    return 0;
}

static void pass_ms(unsigned ms)
{
    now.tv_sec += ms / 1000;
    now.tv_nsec += ms % 1000 * 1000000L;
    now.tv_sec += now.tv_nsec / 1000000000L;
    now.tv_nsec %= 1000000000L;
}

static struct code_service *service_of(unsigned compilers, const char *directory)
{
    const struct code_service_config config = {.compiler.helpers = compilers,
                                               .compiler.time_s = TIME_S,
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

static struct code_service *service_of_few(const char *directory)
{
    return service_of(COMPILERS, directory);
}

static void expect_paused(unsigned n, const char *oldest)
{
    const char *source;

    assert_int_equal(fake_paused(&source), n);
    assert_string_equal(source, oldest);
}

static void on_idle(uv_idle_t *idle)
{
    (void)idle;
}

/* Until the service's own timer has had that source begun, or go on. */
static void until_begun(const char *source)
{
    uv_idle_t idle;

    uv_idle_init(&loop, &idle);
    uv_idle_start(&idle, on_idle);
    while (strcmp(fake_last()->source, source) != 0)
        uv_run(&loop, UV_RUN_NOWAIT);
    uv_close((uv_handle_t *)&idle, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
}

/* The loop reads the disk before the next one asks, so the order is that of the calls. */
static void ask_on(struct asker *asker, struct code_service *s, uint64_t user, uint64_t connection, const char *source)
{
    ask_from(asker, s, user, connection, source);
    uv_run(&loop, UV_RUN_DEFAULT);
}

static void ask_as(struct asker *asker, struct code_service *s, uint64_t user, const char *source)
{
    ask_on(asker, s, user, 0, source);
}

/* Ends the oldest compile. What is begun, or goes on, in its place has this source. */
static void expect_next(unsigned seed, const char *source)
{
    unsigned begun = fake_begun();

    fake_succeed(module_new(seed, 1000));
    assert_int_equal(fake_begun(), begun + (source ? 1 : 0));
    if (source)
        assert_string_equal(fake_last()->source, source);
}

static void users_take_turns(void **state)
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
        assert_string_equal(fake_last()->source, "b0"); /* m1 is still compiled */
        expect_paused(1, "m0");
        ask_as(&b[1], s, 2, "b1");
        expect_next(1, "m0");
        expect_paused(0, "");
        ask_as(&c, s, 3, "c0");
        ask_as(&shared, s, 3, "m7"); /* whoever joins brings the own turn along */
        expect_next(2, "c0");
        expect_next(3, "b1");
        expect_next(4, "m2");
        expect_next(5, "m7");
        expect_next(6, "m3");
        expect_next(7, "m4");
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

/* Somebody's second program does not wait for all that the first one has asked for. */
static void connections_of_a_user_take_turns(void **state)
{
    static const char *const many[] = {"m0", "m1", "m2", "m3", "m4", "m5"};
    struct code_service *s = service_of_few(NULL);
    struct asker first[6] = {0}, second[2] = {0}, other = {0};

    (void)state;
    for (unsigned i = 0; i < 6; i++)
        ask_on(&first[i], s, 1, 10, many[i]);
    ask_on(&second[0], s, 1, 20, "s0");
    ask_on(&second[1], s, 1, 20, "s1");
    ask_on(&other, s, 2, 10, "o0"); /* another user's, of the same number */
    expect_paused(1, "m0");
    expect_next(1, "s0");
    expect_next(2, "m0");
    expect_next(3, "s1");
    expect_next(4, "m2");
    expect_next(5, "m3");
    expect_next(6, "m4");
    expect_next(7, "m5");
    expect_next(8, NULL);
    expect_next(9, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    for (unsigned i = 0; i < 6; i++)
        asker_clear(&first[i]);
    asker_clear(&second[0]);
    asker_clear(&second[1]);
    asker_clear(&other);
    service_close(s);
}

/* Many connections get their user no more than one. */
static void connections_do_not_count_as_users(void **state)
{
    static const char *const many[] = {"m0", "m1", "m2", "m3", "m4", "m5"}, *const few[] = {"f0", "f1", "f2"};
    struct code_service *s = service_of_few(NULL);
    struct asker a[6] = {0}, b[3] = {0};

    (void)state;
    for (unsigned i = 0; i < 6; i++)
        ask_on(&a[i], s, 1, i, many[i]);
    for (unsigned i = 0; i < 3; i++)
        ask_on(&b[i], s, 2, 100, few[i]);
    expect_paused(1, "m0");
    expect_next(1, "m2");
    expect_next(2, "f1");
    expect_next(3, "m3");
    expect_next(4, "f2");
    expect_next(5, "m4");
    service_close(s); /* with one that is paused */
    for (unsigned i = 0; i < 6; i++)
        asker_clear(&a[i]);
    for (unsigned i = 0; i < 3; i++)
        asker_clear(&b[i]);
}

/* The turn of somebody who has gone is nobody's. */
static void turns_of_those_who_leave_are_gone(void **state)
{
    struct code_service *s = service_of_few(NULL);
    struct asker a[3] = {0}, joined = {0}, left = {0};
    static const char *const sources[] = {"a0", "a1", "a2"};

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        ask_as(&a[i], s, 1, sources[i]);
    ask_as(&joined, s, 1, "x");
    ask_as(&left, s, 2, "x");
    code_request_cancel(left.request);
    expect_next(1, "a2");
    expect_next(2, "x");
    service_close(s);
    for (unsigned i = 0; i < 3; i++)
        asker_clear(&a[i]);
}

/* Where users can only take turns, each has a while that nobody interrupts. */
static void slices_of_time(void **state)
{
    struct code_service *s = service_of_few(NULL);
    struct asker a = {0}, b = {0}, c = {0}, late = {0};

    (void)state;
    ask_as(&a, s, 1, "a");
    pass_ms(TURN_SLICE_MS - 1);
    ask_as(&b, s, 2, "b");
    ask_as(&c, s, 3, "c");
    expect_paused(0, "");
    pass_ms(1);
    until_begun("c"); /* in place of the one that has been compiled longest */
    expect_paused(1, "a");
    ask_as(&late, s, 4, "late");
    pass_ms(TURN_SLICE_MS - 2);
    expect_next(1, "late"); /* b is done; the new user has had no turn yet */
    expect_paused(1, "a");
    pass_ms(2);
    until_begun("a"); /* c's time is over */
    expect_paused(1, "c");
    fake_succeed_paused(module_new(2, 1000)); /* its answer was on its way */
    assert_int_equal(c.answers, 1);
    expect_next(3, NULL);
    expect_next(4, NULL);
    assert_true(a.compiled && b.compiled && c.compiled && late.compiled);
    assert_int_equal(fake_cancelled(), 0); /* nothing was begun anew */
    assert_int_equal(code_service_counters(s).compiles, 4);
    service_close(s);
    asker_clear(&a);
    asker_clear(&b);
    asker_clear(&c);
    asker_clear(&late);
}

static void a_join_brings_its_turn_at_once(void **state)
{
    struct code_service *s = service_of_few(NULL);
    struct asker a[3] = {0}, joined = {0};
    static const char *const sources[] = {"a0", "a1", "a2"};

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        ask_as(&a[i], s, 1, sources[i]);
    ask_as(&joined, s, 2, "a2");
    until_begun("a2");
    expect_paused(1, "a0");
    code_request_cancel(a[0].request); /* a paused one */
    expect_paused(0, "");
    assert_int_equal(fake_waiting(), 2);
    service_close(s);
}

/* No more are paused than may run; the next one begins anew, and fails when it has lost too much. */
static void what_is_paused_is_bounded(void **state)
{
    struct code_service *s = service_of(1, NULL);
    struct asker a = {0}, b = {0}, c = {0}, d = {0};

    (void)state;
    ask_as(&a, s, 1, "a");
    pass_ms(TURN_SLICE_MS);
    ask_as(&b, s, 2, "b");
    expect_paused(1, "a");
    pass_ms(TIME_S * 1000);
    ask_as(&c, s, 3, "c");
    assert_string_equal(fake_last()->source, "c");
    expect_paused(1, "a");
    assert_int_equal(fake_cancelled(), 1);
    expect_next(1, "a");
    expect_next(2, "b"); /* anew */
    asker_clear(&a);
    pass_ms(TURN_SLICE_MS);
    ask_as(&a, s, 1, "a2");
    expect_paused(1, "b");
    pass_ms(TURN_SLICE_MS);
    ask_as(&d, s, 4, "d");
    assert_int_equal(fake_cancelled(), 2);
    expect_next(3, "b");
    expect_next(4, "a2"); /* anew */
    pass_ms(TIME_S * 1000);
    fake_fail("time", "");
    assert_string_equal(a.message, "the source does not compile; other users' compiles interrupted it 1 time");
    asker_clear(&a);
    asker_clear(&b);
    asker_clear(&c);
    asker_clear(&d);
    service_close(s);
}

static void what_is_lost_is_bounded(void **state)
{
    struct code_service *s = service_of(1, NULL);
    struct asker a = {0}, b = {0}, c = {0};

    (void)state;
    ask_as(&a, s, 1, "a");
    pass_ms(TURN_SLICE_MS);
    ask_as(&b, s, 2, "b");
    pass_ms(2 * TIME_S * 1000);
    ask_as(&c, s, 3, "c");
    assert_int_equal(fake_cancelled(), 1);
    expect_next(1, "a");
    assert_int_equal(b.answers, 0);
    expect_next(2, NULL);
    assert_int_equal(b.answers, 1);
    assert_int_equal(b.code, ERROR_COMPILE_FAILED);
    assert_string_equal(b.reason, "time");
    assert_string_equal(b.message, "the compile took longer than 2 s in all and was stopped (kernels.time_s); other "
                                   "users' compiles interrupted it 1 time");
    assert_int_equal(code_service_counters(s).failures, 1);
    service_close(s);
    asker_clear(&a);
    asker_clear(&c);
}

static void where_nothing_can_be_paused(void **state)
{
    struct code_service *s = service_of_few(NULL);
    struct asker a[2] = {0}, b = {0};

    (void)state;
    ask_as(&a[0], s, 1, "a0");
    ask_as(&a[1], s, 1, "a1");
    fake_may_not_pause();
    ask_as(&b, s, 2, "b");
    assert_int_equal(fake_cancelled(), 0);
    expect_next(1, "b");
    service_close(s);
    asker_clear(&a[0]);
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
        cmocka_unit_test(users_take_turns),
        cmocka_unit_test(connections_of_a_user_take_turns),
        cmocka_unit_test(connections_do_not_count_as_users),
        cmocka_unit_test(turns_of_those_who_leave_are_gone),
        cmocka_unit_test(slices_of_time),
        cmocka_unit_test(a_join_brings_its_turn_at_once),
        cmocka_unit_test(what_is_paused_is_bounded),
        cmocka_unit_test(what_is_lost_is_bounded),
        cmocka_unit_test(where_nothing_can_be_paused),
        cmocka_unit_test(those_who_leave_make_room),
        cmocka_unit_test(closing_while_some_wait),
        cmocka_unit_test(without_memory_later),
    };
    int failures;

    uv_loop_init(&loop);
    failures = cmocka_run_group_tests(tests, NULL, NULL);
    return uv_loop_close(&loop) || failures;
}

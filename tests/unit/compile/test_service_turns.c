/* Whose source is compiled next, where more wait than there are compilers, and whose is interrupted. The service's
 * clock stands still but for the test. */
#include <stdio.h>
#include <time.h>

#include "compile/service_internal.h"
#include "fake_compiler.h"
#include "service_support.h"

enum { COMPILERS = 2, TIME_S = 1 };

static struct timespec now = {.tv_sec = 1000};

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time);

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time)
{
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
    return service_opened(s);
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
}

/* Until the service's own timer has had that source begun, or go on. */
static void until_begun(const char *source)
{
    uv_idle_t idle;

    uv_idle_init(&loop, &idle);
    uv_idle_start(&idle, on_idle);
    while (strcmp(fake_compiler.last.source, source) != 0)
        uv_run(&loop, UV_RUN_NOWAIT);
    uv_close((uv_handle_t *)&idle, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
}

/* Of a user, one asker for each of these sources, which have blanks between. The loop reads the disk before the next
 * one asks, so the order is that of the sources. */
static void ask_on(struct asker *askers, struct code_service *s, uint64_t user, uint64_t connection,
                   const char *sources)
{
    char copy[64], *rest = copy;

    snprintf(copy, sizeof(copy), "%s", sources);
    for (const char *source; (source = strsep(&rest, " ")); askers++) {
        ask_from(askers, s, user, connection, source);
        uv_run(&loop, UV_RUN_DEFAULT);
    }
}

static void ask_as(struct asker *askers, struct code_service *s, uint64_t user, const char *sources)
{
    ask_on(askers, s, user, 0, sources);
}

/* Ends the oldest compile, again and again. What is begun, or goes on, in the place of each has these sources; "-":
 * nothing. */
static void expect_next(const char *sources)
{
    char copy[64], *rest = copy;
    static unsigned seed;

    snprintf(copy, sizeof(copy), "%s", sources);
    for (const char *source; (source = strsep(&rest, " "));) {
        const unsigned begun = fake_compiler.begun;
        const bool none = *source == '-';

        fake_succeed(module_new(seed++, 1000), false);
        assert_int_equal(fake_compiler.begun, begun + !none);
        if (!none)
            assert_string_equal(fake_compiler.last.source, source);
    }
}

OPENING_TEST(users_take_turns)
{
    const char *directory = folder_new();

    for (unsigned disk = 0; disk < 2; disk++) {
        struct code_service *s = service_of_few(disk ? directory : NULL);
        struct asker a[8] = {0}, b[2] = {0}, c[2] = {0};

        ask_as(a, s, 1, "m0 m1 m2 m3 m4 m5 m6 m7");
        assert_int_equal(fake_waiting(), COMPILERS); /* the compiler has no more than it can do at one time */
        ask_as(&b[0], s, 2, "b0");
        assert_string_equal(fake_compiler.last.source, "b0"); /* m1 is still compiled */
        expect_paused(1, "m0");
        ask_as(&b[1], s, 2, "b1");
        expect_next("m0");
        expect_paused(0, "");
        ask_as(c, s, 3, "c0 m7"); /* whoever joins brings the own turn along */
        expect_next("c0 b1 m2 m7 m3 m4 m5 m6 - -");
        assert_int_equal(fake_waiting(), 0);
        uv_run(&loop, UV_RUN_DEFAULT);
        for (unsigned i = 0; i < 8; i++)
            assert_int_equal(a[i].answers, 1);
        close_now(s);
    }
}

/* Somebody's second program does not wait for all that the first one has asked for. */
OPENING_TEST(connections_of_a_user_take_turns)
{
    struct code_service *s = service_of_few(NULL);
    struct asker first[6] = {0}, second[2] = {0}, other = {0};

    ask_on(first, s, 1, 10, "m0 m1 m2 m3 m4 m5");
    ask_on(second, s, 1, 20, "s0 s1");
    ask_on(&other, s, 2, 10, "o0"); /* another user's, of the same number */
    expect_paused(1, "m0");
    expect_next("s0 m0 s1 m2 m3 m4 m5 - -");
    uv_run(&loop, UV_RUN_DEFAULT);
}

/* Many connections get their user no more than one. */
OPENING_TEST(connections_do_not_count_as_users)
{
    static const char *const many[] = {"m0", "m1", "m2", "m3", "m4", "m5"};
    struct code_service *s = service_of_few(NULL);
    struct asker a[6] = {0}, b[3] = {0};

    for (unsigned i = 0; i < 6; i++)
        ask_on(&a[i], s, 1, i, many[i]);
    ask_on(b, s, 2, 100, "f0 f1 f2");
    expect_paused(1, "m0");
    expect_next("m2 f1 m3 f2 m4");
    close_now(s); /* with one that is paused, and one that waits */
    assert_int_equal(a[0].answers + a[5].answers, 0);
}

/* Not the one whose last compile began longest ago. */
OPENING_TEST(the_user_with_the_fewest_running_is_next)
{
    struct code_service *s = service_of_few(NULL);
    struct asker a[2] = {0}, b[2] = {0};

    ask_as(&a[0], s, 1, "a0");
    ask_as(&b[0], s, 2, "b0");
    ask_as(&a[1], s, 1, "a1");
    ask_as(&b[1], s, 2, "b1");
    code_request_cancel(b[0].request);
    assert_string_equal(fake_compiler.last.source, "b1");
    expect_paused(0, "");
}

/* The turn of somebody who has gone is nobody's. */
OPENING_TEST(turns_of_those_who_leave_are_gone)
{
    struct code_service *s = service_of_few(NULL);
    struct asker a[4] = {0}, left = {0};

    ask_as(a, s, 1, "a0 a1 a2 x");
    ask_as(&left, s, 2, "x");
    code_request_cancel(left.request);
    expect_next("a2 x");
}

/* Where users can only take turns, each has a while that nobody interrupts. */
OPENING_TEST(slices_of_time)
{
    struct code_service *s = service_of_few(NULL);
    struct asker a = {0}, b = {0}, c = {0}, late = {0};

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
    expect_next("late"); /* b is done; the new user has had no turn yet */
    expect_paused(1, "a");
    pass_ms(2);
    until_begun("a"); /* c's time is over */
    expect_paused(1, "c");
    fake_succeed(module_new(2, 1000), true); /* its answer was on its way */
    assert_int_equal(c.answers, 1);
    expect_next("- -");
    assert_true(a.compiled && b.compiled && c.compiled && late.compiled);
    assert_int_equal(fake_compiler.cancelled, 0); /* nothing was begun anew */
    assert_int_equal(code_service_counters(s).compiles, 4);
}

OPENING_TEST(a_join_brings_its_turn_at_once)
{
    struct code_service *s = service_of_few(NULL);
    struct asker a[3] = {0}, joined = {0};

    ask_as(a, s, 1, "a0 a1 a2");
    ask_as(&joined, s, 2, "a2");
    until_begun("a2");
    expect_paused(1, "a0");
    code_request_cancel(a[0].request); /* a paused one */
    expect_paused(0, "");
    assert_int_equal(fake_waiting(), 2);
}

/* No more are paused than may run; the next one begins anew, and fails when it has lost too much. */
OPENING_TEST(what_is_paused_is_bounded)
{
    struct code_service *s = service_of(1, NULL);
    struct asker a = {0}, b = {0}, c = {0}, again = {0}, d = {0};

    ask_as(&a, s, 1, "a");
    pass_ms(TURN_SLICE_MS);
    ask_as(&b, s, 2, "b");
    expect_paused(1, "a");
    pass_ms(TIME_S * 1000);
    ask_as(&c, s, 3, "c");
    assert_string_equal(fake_compiler.last.source, "c");
    expect_paused(1, "a");
    assert_int_equal(fake_compiler.cancelled, 1);
    expect_next("a b"); /* b anew */
    pass_ms(TURN_SLICE_MS);
    ask_as(&again, s, 1, "a2");
    expect_paused(1, "b");
    pass_ms(TURN_SLICE_MS);
    ask_as(&d, s, 4, "d");
    assert_int_equal(fake_compiler.cancelled, 2);
    expect_next("b a2"); /* a2 anew */
    pass_ms(TIME_S * 1000);
    fake_fail("time", "");
    assert_string_equal(again.message, "the source does not compile; other users' compiles interrupted it 1 time");
}

OPENING_TEST(what_is_lost_is_bounded)
{
    struct code_service *s = service_of(1, NULL);
    struct asker a = {0}, b = {0}, c = {0};

    ask_as(&a, s, 1, "a");
    pass_ms(TURN_SLICE_MS);
    ask_as(&b, s, 2, "b");
    pass_ms(2 * TIME_S * 1000);
    ask_as(&c, s, 3, "c");
    assert_int_equal(fake_compiler.cancelled, 1);
    expect_next("a");
    assert_int_equal(b.answers, 0);
    expect_next("-");
    assert_int_equal(b.answers, 1);
    assert_int_equal(b.code, ERROR_COMPILE_FAILED);
    assert_string_equal(b.reason, "time");
    assert_string_equal(b.message, "the compile took longer than 2 s in all and was stopped (kernels.time_s); other "
                                   "users' compiles interrupted it 1 time");
    assert_int_equal(code_service_counters(s).failures, 1);
}

OPENING_TEST(where_nothing_can_be_paused)
{
    struct code_service *s = service_of_few(NULL);
    struct asker a[2] = {0}, b = {0};

    ask_as(a, s, 1, "a0 a1");
    fake_compiler.may_not_pause = true;
    ask_as(&b, s, 2, "b");
    assert_int_equal(fake_compiler.cancelled, 0);
    expect_next("b");
}

OPENING_TEST(those_who_leave_make_room)
{
    static const char *const sources[] = {"a", "b", "c", "d", "e"};
    struct code_service *s = service_of_few(NULL);
    struct asker a[5] = {0};

    for (unsigned i = 0; i < 5; i++)
        ask_as(&a[i], s, i, sources[i]);
    code_request_cancel(a[3].request); /* it waits: nothing was begun */
    assert_int_equal(fake_compiler.begun, COMPILERS);
    assert_int_equal(fake_compiler.cancelled, 0);
    code_request_cancel(a[0].request);
    assert_int_equal(fake_compiler.cancelled, 1);
    assert_int_equal(fake_waiting(), COMPILERS);
    assert_string_equal(fake_compiler.last.source, "c");
    fake_fail("source", "error");
    assert_string_equal(fake_compiler.last.source, "e");
    assert_int_equal(fake_waiting(), COMPILERS);
    close_now(s); /* with two that compile */
}

OPENING_TEST(without_memory_later)
{
    struct code_service *s = service_of_few(NULL);
    struct asker a[4] = {0};

    ask_as(a, s, 1, "a b c d");
    fake_compiler.short_of_memory = true;
    code_request_cancel(a[0].request);
    assert_int_equal(a[2].code, ERROR_OUT_OF_MEMORY);
    assert_int_equal(a[3].code, ERROR_OUT_OF_MEMORY);
    assert_int_equal(a[1].answers, 0);
    fake_succeed(module_new(1, 1000), false);
    assert_int_equal(a[1].answers, 1);
}

ALL_TESTS_WITH(loop_open, loop_close)

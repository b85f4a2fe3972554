/* Whose source is compiled next, where more wait than there are compilers, and whose is interrupted. The service's
 * clock stands still but for the test. */
#include <stdio.h>
#include <time.h>

#include "compile/service_internal.h"
#include "support.h"

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

/* Every asker of the test, in the order in which they came. */
static struct asker askers[16];
static const char *sources[16];
static unsigned n_askers;

static struct code_service *service_of(unsigned compilers, const char *directory)
{
    const struct code_service_config config = {.compiler.helpers = compilers,
                                               .compiler.time_s = TIME_S,
                                               .directory = directory,
                                               .disk_bytes = 1 << 20,
                                               .memory_bytes = 1 << 20,
                                               .source_bytes = 1000};

    memset(askers, 0, sizeof(askers));
    n_askers = 0;
    return service_open_of(&config);
}

static void expect_paused(const char *source)
{
    const char *oldest;

    assert_int_equal(fake_paused(&oldest), *source != '-');
    assert_string_equal(oldest, *source == '-' ? "" : source);
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

/* Ends the oldest compile. What is begun, or goes on, in its place has that source; "-": nothing. */
static void expect_next(const char *source)
{
    const unsigned begun = fake_compiler.begun;
    static unsigned seed;

    fake_succeed(module_new(seed++, 1000), false);
    assert_int_equal(fake_compiler.begun, begun + (*source != '-'));
    if (*source != '-')
        assert_string_equal(fake_compiler.last.source, source);
}

/* The loop reads the disk before the next one asks, so the order is that of the sources. */
static void ask_of(struct code_service *s, uint64_t user, uint64_t connection, const char *source)
{
    sources[n_askers] = source;
    ask_from(&askers[n_askers++], s, user, connection, source);
    uv_run(&loop, UV_RUN_DEFAULT);
}

/* Steps with commas between: who asks for which sources ("user:", or "user/connection:"), and what is done or expected,
 * for each of the words behind it. */
static void play(struct code_service *s, char *steps)
{
    for (char *step; (step = strsep(&steps, ","));) {
        unsigned user = 0, connection = 0;
        char *what = strsep(&step, " "), *word;

        if (!*what)
            what = strsep(&step, " ");
        sscanf(what, "%u/%u", &user, &connection);
        while ((word = strsep(&step, " "))) {
            const unsigned number = (unsigned)strtoul(word, NULL, 10);

            print_message("%s %s\n", what, word);
            if (user)
                ask_of(s, user, connection, word);
            else if (!strcmp(what, "next"))
                expect_next(word);
            else if (!strcmp(what, "paused"))
                expect_paused(word);
            else if (!strcmp(what, "runs"))
                assert_string_equal(fake_compiler.last.source, word);
            else if (!strcmp(what, "until"))
                until_begun(word);
            else if (!strcmp(what, "pass"))
                pass_ms(number);
            else if (!strcmp(what, "waiting"))
                assert_int_equal(fake_waiting(), number);
            else if (!strcmp(what, "begun"))
                assert_int_equal(fake_compiler.begun, number);
            else if (!strcmp(what, "cancelled"))
                assert_int_equal(fake_compiler.cancelled, number);
            else if (!strcmp(what, "leaves"))
                code_request_cancel(askers[number].request);
            else if (!strcmp(what, "answered"))
                assert_int_equal(askers[number].answers, 1);
            else if (!strcmp(what, "finished")) /* the paused one, whose answer was on its way */
                fake_succeed(module_new(999, 1000), true);
            else if (!strcmp(what, "fails"))
                fake_fail(word, "");
            else
                fail_msg("no step \"%s\"", what);
        }
    }
}

OPENING_TEST(turns)
{
    static const struct {
        unsigned compilers;
        const char *steps;
    } plays[] = {
        /* The compiler has no more than it can do at one time; whoever joins brings the own turn along. */
        {2, "1: m0 m1 m2 m3 m4 m5 m6 m7,waiting 2,2: b0,runs b0,paused m0,2: b1,next m0,paused -,3: c0 m7,"
            "next c0 b1 m2 m7 m3 m4 m5 m6 - -,waiting 0,answered 0 1 2 3 4 5 6 7 8 9 10 11"},
        /* A second program of a user does not wait for all that the first one has asked for; another user's connection
         * of that number is another one. */
        {2, "1/10: m0 m1 m2 m3 m4 m5,1/20: s0 s1,2/10: o0,paused m0,next s0 m0 s1 m2 m3 m4 m5 - -"},
        /* Many connections get their user no more than one. The end comes with one paused, and with one that waits. */
        {2, "1/0: m0,1/1: m1,1/2: m2,1/3: m3,1/4: m4,1/5: m5,2/100: f0 f1 f2,paused m0,next m2 f1 m3 f2 m4"},
        /* The user with the fewest running is next, not the one whose last compile began longest ago. */
        {2, "1: a0,2: b0,1: a1,2: b1,leaves 1,runs b1,paused -"},
        /* The turn of somebody who has gone is nobody's. */
        {2, "1: a0 a1 a2 x,2: x,leaves 4,next a2 x"},
        /* Where users can only take turns, each has a while that nobody interrupts. The one that has been compiled
         * longest is paused; a new user has had no turn yet; nothing is begun anew. */
        {2,
         "1: a,pass 499,2: b,3: c,paused -,pass 1,until c,paused a,4: late,pass 498,next late,paused a,pass 2,until a,"
         "paused c,finished c,answered 2,next - -,answered 0 1 3,cancelled 0"},
        /* A user who joins brings a turn along at once. A paused one is left. */
        {2, "1: a0 a1 a2,2: a2,until a2,paused a0,leaves 0,paused -,waiting 2"},
        /* No more are paused than may run; the next one begins anew. */
        {1, "1: a,pass 500,2: b,paused a,pass 1000,3: c,runs c,paused a,cancelled 1,next a b,pass 500,1: a2,paused b,"
            "pass 500,4: d,cancelled 2,next b a2"},
        /* Users who leave make room: one that waits; one that runs. */
        {2, "1: a,2: b,3: c,4: d,5: e,leaves 3,begun 2,cancelled 0,leaves 0,cancelled 1,waiting 2,runs c,fails source,"
            "runs e,waiting 2"},
    };

    _Static_assert(TURN_SLICE_MS == 500, "the plays pass it");
    for (unsigned i = 0; i < sizeof(plays) / sizeof(plays[0]); i++)
        for (unsigned disk = 0; disk < (i ? 1 : 2); disk++) {
            const unsigned open = opened_so_far();
            struct code_service *s = service_of(plays[i].compilers, disk ? folder_new() : NULL);
            char *steps = opened(strdup(plays[i].steps), free);

            print_message("play %u\n", i);
            play(s, steps);
            close_since(open);
            for (unsigned k = 0; k < n_askers; k++)
                assert_in_range(askers[k].answers, 0, 1);
        }
}

/* What was begun anew tells of it, and fails when it has lost too much. */
OPENING_TEST(what_is_lost_is_bounded)
{
    struct code_service *s = service_of(1, NULL);

    ask_of(s, 1, 0, "a");
    pass_ms(TURN_SLICE_MS);
    ask_of(s, 2, 0, "b");
    pass_ms(TIME_S * 1000);
    ask_of(s, 3, 0, "c"); /* instead of b */
    expect_next("a");
    expect_next("b");
    fake_fail("time", "");
    assert_string_equal(askers[1].message, "the source does not compile; other users' compiles interrupted it 1 time");
    ask_of(s, 1, 0, "d");
    pass_ms(TURN_SLICE_MS);
    ask_of(s, 2, 0, "e");
    pass_ms(2 * TIME_S * 1000);
    ask_of(s, 3, 0, "f");
    assert_int_equal(fake_compiler.cancelled, 2);
    expect_next("d");
    assert_int_equal(askers[4].answers, 0);
    expect_next("-");
    assert_int_equal(askers[4].code, ERROR_COMPILE_FAILED);
    assert_string_equal(askers[4].reason, "time");
    assert_string_equal(askers[4].message, "the compile took longer than 2 s in all and was stopped (kernels.time_s); "
                                           "other users' compiles interrupted it 1 time");
    assert_int_equal(code_service_counters(s).failures, 2);
}

OPENING_TEST(where_nothing_can_be_paused_or_begun)
{
    struct code_service *s = service_of(2, NULL);

    for (unsigned user = 1; user < 5; user++)
        ask_of(s, 1, 0, (const char *const[]){"", "a", "b", "c", "d"}[user]);
    fake_compiler.may_not_pause = true;
    ask_of(s, 2, 0, "e");
    assert_int_equal(fake_compiler.cancelled, 0);
    expect_next("e");
    fake_compiler.short_of_memory = true;
    code_request_cancel(askers[1].request);
    assert_int_equal(askers[2].code, ERROR_OUT_OF_MEMORY);
    assert_int_equal(askers[3].code, ERROR_OUT_OF_MEMORY);
    assert_int_equal(askers[4].answers, 0);
    expect_next("-");
    assert_int_equal(askers[4].answers, 1);
}

ALL_TESTS_WITH(loop_open, loop_close)

/* A trace belongs to its connection; what becomes of good and of wrong answers. The bytes are golden: test_golden.c. */
#include "scripted.h"

#define ANSWER(events)                                                                                                 \
    "{recording: true, origin_ns: 1, now_ns: 2, dropped: 0, kinds: [], clients: [], events: " events "}"
#define EVENT "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]"

static int begin(void **state)
{
    struct scene *s = scene_start(NULL);

    scene_answer(s, "trace", ANSWER("[]"));
    *state = s;
    return 0;
}

static void a_trace_is_read_in_parts(void **state)
{
    struct scene *s = *state;
    struct kops_trace *trace;

    assert_ok(kops_trace_begin(s->client, NULL, NULL));
    scene_answer(s, "trace", ANSWER("[" EVENT ", " EVENT "]"));
    assert_ok(kops_trace_read(s->client, false, &trace, NULL));
    assert_int_equal(trace->n_events, 2);
    assert_int_equal(trace->events[1].executions, 10);
    assert_null(kops_trace_free(trace));
    scene_answer(s, "trace", ANSWER("[]"));
    assert_ok(kops_trace_read(s->client, true, &trace, NULL));
    assert_true(trace->n_events == 0 && !trace->kinds[0] && !trace->clients[0]);
    assert_null(kops_trace_free(trace));
    assert_null(kops_trace_free(NULL));
}

static void a_trace_is_begun_first(void **state)
{
    struct scene *s = *state;
    struct kops_trace *trace;

    assert_int_equal(kops_trace_read(s->client, false, &trace, &s->error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(s->error.message, "kops_trace_begin"));
    assert_int_equal(kops_trace_read(s->client, true, &trace, NULL), KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(scene_seen(s).work, 0);
}

static void a_trace_ends_with_its_connection(void **state)
{
    struct scene *s = *state;
    struct kops_trace *trace;

    assert_ok(kops_trace_begin(s->client, NULL, NULL));
    scene_script(s, "x", "trace");
    assert_int_equal(kops_trace_read(s->client, false, &trace, NULL), KOPS_ERR_CONNECTION_LOST);
    assert_ok(kops_ping(s->client, 0, NULL));
    /* The daemon that is there now is not asked: it would say that there are no events. */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kops_trace_read(s->client, i, &trace, &s->error), KOPS_ERR_CONNECTION_LOST);
        assert_non_null(strstr(s->error.message, "begin another one"));
    }
    assert_int_equal(scene_seen(s).work, 1);
    assert_ok(kops_trace_begin(s->client, NULL, NULL));
    assert_ok(kops_trace_read(s->client, false, &trace, NULL));
    kops_trace_free(trace);
}

/* The daemon may have begun it, on a connection that is over. */
static void a_beginning_without_reply_is_not_repeated(void **state)
{
    struct scene *s = *state;
    struct kops_trace *trace;

    scene_script(s, "x", "trace");
    assert_int_equal(kops_trace_begin(s->client, NULL, NULL), KOPS_ERR_CONNECTION_LOST);
    assert_int_equal(scene_seen(s).work, 1);
    assert_int_equal(kops_trace_read(s->client, false, &trace, NULL), KOPS_ERR_BAD_ARGUMENT);
}

static void a_wrong_reply_is_refused(void **state)
{
    static const char *const wrong[] = {
        ANSWER("[[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]"), /* ten columns */
        ANSWER("[" EVENT ", []]"),
        ANSWER("[5]"),
        ANSWER("[[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, false]]"),
        ANSWER("[[1, 2, 3, 4, -1, 6, 7, 8, 9, 10, 0]]"),
        ANSWER("5"),
        "{}",
    };
    struct scene *s = *state;
    struct kops_trace *trace;

    assert_ok(kops_trace_begin(s->client, NULL, NULL));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        scene_answer(s, "trace", wrong[i]);
        if (kops_trace_read(s->client, false, &trace, NULL) != KOPS_ERR_BAD_REPLY)
            fail_msg("taken: %s", wrong[i]);
    }
    /* Of an older daemon, and of a newer one. */
    scene_answer(s, "trace", ANSWER("[" EVENT "]"));
    assert_ok(kops_trace_read(s->client, false, &trace, NULL));
    assert_true(trace->events[0].busy == 9 && trace->events[0].finished == 0);
    kops_trace_free(trace);
    scene_answer(s, "trace", ANSWER("[[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 11, 12, null]]"));
    assert_ok(kops_trace_read(s->client, false, &trace, NULL));
    assert_true(trace->events[0].began == 11 && trace->events[0].finished == 12);
    kops_trace_free(trace);
}

static void an_older_daemon_is_told_as_such(void **state)
{
    struct scene *s = *state;

    scene_script(s, "u", "trace");
    assert_int_equal(kops_trace_begin(s->client, NULL, &s->error), KOPS_ERR_UNSUPPORTED);
    assert_non_null(strstr(s->error.message, "older than the method `trace`"));
}

int main(void)
{
#define WITH_TRACE(name) cmocka_unit_test_setup_teardown(name, begin, scene_end)
    const struct CMUnitTest tests[] = {
        WITH_TRACE(a_trace_is_read_in_parts),         WITH_TRACE(a_trace_is_begun_first),
        WITH_TRACE(a_trace_ends_with_its_connection), WITH_TRACE(a_beginning_without_reply_is_not_repeated),
        WITH_TRACE(a_wrong_reply_is_refused),         WITH_TRACE(an_older_daemon_is_told_as_such),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

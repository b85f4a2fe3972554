/* A trace belongs to its connection; what becomes of good and of wrong answers. The bytes are golden: test_golden.c. */
#include "test.h"

/* Answers `trace` with these bytes, a packed map, unless it is to hang up, or to be older than the method. */
struct told {
    const char *bytes;
    size_t length;
    unsigned asked;
    bool hang_up, older;
};

/* {recording: true, origin_ns: 1, now_ns: 2, dropped: 0, kinds: [], clients: [], events: */
#define HEAD                                                                                                           \
    "\x87\xa9recording\xc3\xa9origin_ns\x01\xa6now_ns\x02\xa7"                                                         \
    "dropped\x00\xa5kinds\x90\xa7"                                                                                     \
    "clients\x90\xa6"                                                                                                  \
    "events"
#define TELL(t, text) ((t)->bytes = (text), (t)->length = sizeof(text) - 1)
#define EVENT         "\x9b\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x00"

static void serve(struct fake_connection *c, void *context)
{
    struct told *t = context;
    struct fake_request r;

    while (fake_next(c, &r)) {
        msgpack_sbuffer b;

        if (strcmp(r.method, "trace") != 0) {
            fake_answer(c, &r);
            continue;
        }
        t->asked++;
        if (t->hang_up)
            return;
        if (t->older) {
            fake_reply_error(c, r.msgid, "unknown_method", "there is no such method");
            continue;
        }
        msgpack_sbuffer_init(&b);
        msgpack_sbuffer_write(&b, t->bytes, t->length);
        fake_reply_map(c, r.msgid, &b);
    }
}

struct state {
    struct told told;
    struct fake *fake;
    kops_client *client;
};

static int set_up(void **state)
{
    struct state *s = calloc(1, sizeof(*s));

    assert_non_null(s);
    TELL(&s->told, HEAD "\x90");
    s->fake = fake_start(serve, &s->told);
    s->client = connect_to(s->fake);
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    struct state *s = *state;

    kops_close(s->client);
    fake_stop(s->fake);
    free(s);
    return 0;
}

static void a_trace_is_read_in_parts(void **state)
{
    struct state *s = *state;
    struct kops_trace *trace;

    assert_ok(kops_trace_begin(s->client, NULL, NULL));
    TELL(&s->told, HEAD "\x92" EVENT EVENT);
    assert_ok(kops_trace_read(s->client, false, &trace, NULL));
    assert_int_equal(trace->n_events, 2);
    assert_int_equal(trace->events[1].executions, 10);
    assert_null(kops_trace_free(trace));
    TELL(&s->told, HEAD "\x90");
    assert_ok(kops_trace_read(s->client, true, &trace, NULL));
    assert_true(trace->n_events == 0 && !trace->kinds[0] && !trace->clients[0]);
    assert_null(kops_trace_free(trace));
    assert_null(kops_trace_free(NULL));
}

static void a_trace_is_begun_first(void **state)
{
    struct state *s = *state;
    struct kops_trace *trace;
    struct kops_error error;

    assert_int_equal(kops_trace_read(s->client, false, &trace, &error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(error.message, "kops_trace_begin"));
    assert_int_equal(kops_trace_read(s->client, true, &trace, NULL), KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(s->told.asked, 0);
}

/* Ends the connection, and has the client make another one. */
static void reconnect(struct state *s)
{
    struct kops_trace *trace;

    s->told.hang_up = true;
    assert_int_equal(kops_trace_read(s->client, false, &trace, NULL), KOPS_ERR_CONNECTION_LOST);
    s->told.hang_up = false;
    assert_ok(kops_ping(s->client, 0, NULL));
}

static void a_trace_ends_with_its_connection(void **state)
{
    struct state *s = *state;
    struct kops_trace *trace;
    struct kops_error error;

    assert_ok(kops_trace_begin(s->client, NULL, NULL));
    reconnect(s);
    assert_int_equal(s->told.asked, 2);
    /* The daemon that is there now is not asked: it would say that there are no events. */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kops_trace_read(s->client, i, &trace, &error), KOPS_ERR_CONNECTION_LOST);
        assert_non_null(strstr(error.message, "begin another one"));
    }
    assert_int_equal(s->told.asked, 2);
    assert_ok(kops_trace_begin(s->client, NULL, NULL));
    assert_ok(kops_trace_read(s->client, false, &trace, NULL));
    kops_trace_free(trace);
}

/* The daemon may have begun it, on a connection that is over. */
static void a_beginning_without_reply_is_not_repeated(void **state)
{
    struct state *s = *state;
    struct kops_trace *trace;

    s->told.hang_up = true;
    assert_int_equal(kops_trace_begin(s->client, NULL, NULL), KOPS_ERR_CONNECTION_LOST);
    assert_int_equal(s->told.asked, 1);
    s->told.hang_up = false;
    assert_int_equal(kops_trace_read(s->client, false, &trace, NULL), KOPS_ERR_BAD_ARGUMENT);
}

static void a_wrong_reply_is_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t length;
    } wrong[] = {
#define WRONG(text) {(text), sizeof(text) - 1}
        WRONG(HEAD "\x91\x9a\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a"), /* ten columns */
        WRONG(HEAD "\x92" EVENT "\x90"),
        WRONG(HEAD "\x91\x05"),
        WRONG(HEAD "\x91\x9b\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\xc2"), /* false */
        WRONG(HEAD "\x91\x9b\x01\x02\x03\x04\xff\x06\x07\x08\x09\x0a\x00"), /* -1 */
        WRONG(HEAD "\x05"),
        WRONG("\x80"),
    };
    struct state *s = *state;
    struct kops_trace *trace;

    assert_ok(kops_trace_begin(s->client, NULL, NULL));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        s->told.bytes = wrong[i].bytes;
        s->told.length = wrong[i].length;
        assert_int_equal(kops_trace_read(s->client, false, &trace, NULL), KOPS_ERR_BAD_REPLY);
    }
    /* Of an older daemon, of one like this, of a newer one. */
    TELL(&s->told, HEAD "\x91\x9b\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x00");
    assert_ok(kops_trace_read(s->client, false, &trace, NULL));
    assert_int_equal(trace->events[0].busy, 9);
    assert_int_equal(trace->events[0].finished, 0);
    kops_trace_free(trace);
    TELL(&s->told, HEAD "\x91\x9e\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x00\x0b\x0c\xc0");
    assert_ok(kops_trace_read(s->client, false, &trace, NULL));
    assert_int_equal(trace->events[0].began, 11);
    assert_int_equal(trace->events[0].finished, 12);
    kops_trace_free(trace);
}

static void an_older_daemon_is_told_as_such(void **state)
{
    struct state *s = *state;
    struct kops_error error;

    s->told.older = true;
    assert_int_equal(kops_trace_begin(s->client, NULL, &error), KOPS_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "older than the method `trace`"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_trace_is_read_in_parts),         TEST(a_trace_is_begun_first),
        TEST(a_trace_ends_with_its_connection), TEST(a_beginning_without_reply_is_not_repeated),
        TEST(a_wrong_reply_is_refused),         TEST(an_older_daemon_is_told_as_such),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Calls that take too long, their cancellation, and replies that come late. */
#include "test.h"

enum { SHORT_MS = 20, LONG_ENOUGH_MS = 1000 /* to connect in, also where much else runs */ };

/* What the daemon does with a run, by its `tag`. The message after one of these must be its cancellation. */
static void answer_held(struct fake_connection *c, const struct fake_request *run, unsigned *cancels)
{
    const msgpack_object *tag = fake_param(fake_param(&run->params, "attrs"), "tag");
    const bool cancellable = fake_is(tag, "cancellable"), too_late = fake_is(tag, "too late");
    const uint32_t held = run->msgid;
    struct fake_request next;

    if (!fake_next(c, &next))
        return;
    if (strcmp(next.method, "cancel") || fake_param(&next.params, "msgid")->via.u64 != held)
        abort();
    ++*cancels;
    if (cancellable) {
        fake_reply_error(c, held, "cancelled", "the run was cancelled");
    } else if (too_late) {
        fake_reply_run(c, held, "done anyway");
    } else if (fake_next(c, &next)) { /* stubborn: replies only once something else was asked */
        fake_reply_run(c, held, "very late");
        fake_answer(c, &next);
    }
}

static void serve_by_tag(struct fake_connection *c, void *context)
{
    struct fake_request r;

    while (fake_next(c, &r)) {
        const msgpack_object *attrs = fake_param(&r.params, "attrs");

        if (attrs && !fake_is(fake_param(attrs, "tag"), "x"))
            answer_held(c, &r, context);
        else
            fake_answer(c, &r);
    }
}

static void cancelled_in_time(void **state)
{
    unsigned cancels = 0;
    struct fake *f = fake_start(serve_by_tag, &cancels);
    kops_client *client = connect_to(f);
    struct kops_error error;
    struct tagged t;

    (void)state;
    tagged_run(&t, "cancellable");
    t.request.options.timeout_ms = SHORT_MS;
    assert_int_equal(kops_run(client, &t.request, NULL, &error), KOPS_ERR_TIMEOUT);
    assert_int_equal(error.code, KOPS_ERR_TIMEOUT);
    assert_ok(kops_ping(client, 0, &error));
    assert_int_equal(cancels, 1);
    kops_close(client);
    fake_stop(f);
}

/* The run ended before the cancellation reached it: its result is worth more than the caller's limit. */
static void ended_before_the_cancellation(void **state)
{
    unsigned cancels = 0;
    struct fake *f = fake_start(serve_by_tag, &cancels);
    kops_client *client = connect_to(f);
    struct kops_result result;
    struct kops_error error;
    struct tagged t;

    (void)state;
    tagged_run(&t, "too late");
    t.request.options.timeout_ms = SHORT_MS;
    assert_ok(kops_run(client, &t.request, &result, &error));
    assert_string_equal(result.variant, "done anyway");
    kops_close(client);
    fake_stop(f);
}

/* No reply at all within the grace: it is dropped when it comes, and does not reach the next call. */
static void late_reply_is_dropped(void **state)
{
    unsigned cancels = 0;
    struct fake *f = fake_start(serve_by_tag, &cancels);
    kops_client *client = connect_to(f);
    struct kops_result result;
    struct kops_error error;
    struct tagged t;
    double samples[3] = {-1, -1, -1};

    (void)state;
    tagged_run(&t, "stubborn");
    t.request.options.timeout_ms = SHORT_MS;
    t.request.options.samples = samples;
    t.request.options.samples_room = 3;
    assert_int_equal(kops_run(client, &t.request, NULL, &error), KOPS_ERR_TIMEOUT);
    for (int i = 0; i < 100; i++) {
        assert_ok(kops_run(client, tagged_run(&t, "x"), &result, &error));
        assert_string_equal(result.variant, "simple");
    }
    assert_true(samples[0] == -1); /* nothing is written after the call has returned */
    kops_close(client);
    fake_stop(f);
}

/* Answers the first ping when the second one comes. */
static void serve_silent_pings(struct fake_connection *c, void *context)
{
    struct fake_request r;
    uint32_t held = 0;
    bool holding = false, held_once = false;

    (void)context;
    while (fake_next(c, &r)) {
        if (!strcmp(r.method, "ping") && !held_once) {
            held = r.msgid;
            holding = held_once = true;
            continue;
        }
        if (holding)
            fake_reply_empty(c, held);
        holding = false;
        fake_answer(c, &r);
    }
}

static void ping_times_out(void **state)
{
    struct fake *f = fake_start(serve_silent_pings, NULL);
    kops_client *client = connect_to(f);
    struct kops_error error;

    (void)state;
    assert_int_equal(kops_ping(client, SHORT_MS, &error), KOPS_ERR_TIMEOUT);
    for (int i = 0; i < 10; i++)
        assert_ok(kops_ping(client, KOPS_FOREVER, &error));
    kops_close(client);
    fake_stop(f);
}

/* ---- tickets ---- */

static void wait_may_be_repeated(void **state)
{
    unsigned cancels = 0;
    struct fake *f = fake_start(serve_by_tag, &cancels);
    kops_client *client = connect_to(f);
    struct kops_result result;
    struct kops_error error;
    kops_ticket ticket;
    struct tagged t;
    bool done = true;

    (void)state;
    assert_ok(kops_submit(client, tagged_run(&t, "too late"), &ticket, &error));
    assert_int_equal(kops_wait(client, ticket, SHORT_MS, &result, &error), KOPS_ERR_TIMEOUT);
    assert_ok(kops_poll(client, ticket, &done, &error));
    assert_false(done);
    assert_ok(kops_cancel(client, ticket, &error));
    assert_ok(kops_wait(client, ticket, 0, &result, &error));
    assert_string_equal(result.variant, "done anyway");
    assert_int_equal(kops_wait(client, ticket, 0, &result, &error), KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(kops_poll(client, ticket, &done, &error), KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(kops_cancel(client, ticket, &error), KOPS_ERR_BAD_ARGUMENT);

    assert_ok(kops_submit(client, tagged_run(&t, "cancellable"), &ticket, &error));
    assert_ok(kops_cancel(client, ticket, &error));
    assert_int_equal(kops_wait(client, ticket, 0, &result, &error), KOPS_ERR_CANCELLED);
    kops_close(client);
    fake_stop(f);
}

/* Memory that a registration made in the daemon, after its caller gave up, is given back. */
static void serve_late_register(struct fake_connection *c, void *context)
{
    unsigned *released = context;
    struct fake_request r;
    uint32_t late = 0;

    while (fake_next(c, &r)) {
        if (!strcmp(r.method, "alloc")) {
            late = r.msgid;
            continue; /* answered below, when its caller has gone */
        }
        if (!strcmp(r.method, "release"))
            *released = (unsigned)fake_param(&r.params, "buffer")->via.u64;
        if (late && !strcmp(r.method, "ping")) {
            struct fake_request alloc = {.msgid = late, .method = "alloc"};
            msgpack_object_kv size = {.key = {.type = MSGPACK_OBJECT_STR, .via.str = {4, "size"}},
                                      .val = {.type = MSGPACK_OBJECT_POSITIVE_INTEGER, .via.u64 = 4096}};

            alloc.params = (msgpack_object){.type = MSGPACK_OBJECT_MAP, .via.map = {1, &size}};
            fake_answer(c, &alloc);
            late = 0;
        }
        fake_answer(c, &r);
    }
}

static void late_buffer_is_released(void **state)
{
    unsigned released = 0;
    struct fake *f = fake_start(serve_late_register, &released);
    struct kops_connect_options options = {.socket = fake_path(f), .timeout_ms = LONG_ENOUGH_MS};
    kops_client *client;
    struct kops_error error;
    kops_buffer *buffer;

    (void)state;
    fake_set_device("GPU-0"); /* whose memory the daemon makes */
    assert_ok(kops_connect(&options, &client, &error));
    assert_int_equal(kops_buffer_alloc(client, 4096, NULL, &buffer, &error), KOPS_ERR_TIMEOUT);
    assert_ok(kops_ping(client, KOPS_FOREVER, &error)); /* the late reply is in front of this one */
    assert_ok(kops_ping(client, KOPS_FOREVER, &error)); /* and the release in front of this one */
    assert_int_equal(released, 1);
    kops_close(client);
    fake_stop(f);
    fake_set_device(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancelled_in_time),     cmocka_unit_test(ended_before_the_cancellation),
        cmocka_unit_test(late_reply_is_dropped), cmocka_unit_test(ping_times_out),
        cmocka_unit_test(wait_may_be_repeated),  cmocka_unit_test(late_buffer_is_released),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

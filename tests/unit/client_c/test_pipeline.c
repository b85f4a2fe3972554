/* Many runs under way at once: order, limits, and no deadlock where both sides write. */
#include <semaphore.h>
#include <sys/socket.h>

#include "test.h"

enum { MANY = 3000 };

/* One thread that reads a request and writes its reply, blocking in both, as a simple daemon does: when nobody reads
 * the replies, it reads no more requests. A socket holds some 280 small messages each way. */
static void many_runs_do_not_deadlock(void **state)
{
    struct fake *f;
    kops_client *client;
    struct kops_error error;
    struct kops_result result;
    static kops_ticket tickets[MANY];
    struct tagged t;

    (void)state;
    fake_set_inflight(MANY);
    f = fake_start(fake_serve_well, NULL);
    client = connect_to(f);
    for (int i = 0; i < MANY; i++)
        assert_ok(kops_submit(client, tagged_run(&t, "x"), &tickets[i], &error));
    /* In an order that is not that of the replies. */
    for (int i = MANY - 1; i >= 0; i--) {
        assert_ok(kops_wait(client, tickets[i], 0, &result, &error));
        assert_true(result.total_us == 20);
    }
    kops_close(client);
    fake_stop(f);
}

/* Lets requests pile up to the limit, sees that no more comes, then answers the newest first. */
static void serve_in_reverse(struct fake_connection *c, void *context)
{
    const unsigned limit = 16;
    unsigned *too_many = context;
    struct fake_request r;
    struct {
        uint32_t msgid;
        char tag[16];
    } held[16];
    unsigned n = 0;

    while (fake_next(c, &r)) {
        const msgpack_object *tag;
        char byte;

        if (strcmp(r.method, "run")) {
            fake_answer(c, &r);
            continue;
        }
        tag = fake_param(fake_param(&r.params, "attrs"), "tag");
        held[n].msgid = r.msgid;
        snprintf(held[n].tag, sizeof(held[n].tag), "%.*s", (int)tag->via.str.size, tag->via.str.ptr);
        if (++n < limit)
            continue;
        *too_many += c->length > 0 || recv(c->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) > 0;
        while (n)
            n--, fake_reply_run(c, held[n].msgid, held[n].tag);
    }
}

static void the_limit_is_kept_and_replies_find_their_call(void **state)
{
    unsigned too_many = 0;
    struct fake *f;
    kops_client *client;
    struct kops_error error;
    struct kops_result result;
    kops_ticket tickets[160];
    struct tagged t;
    char tag[16];

    (void)state;
    fake_set_inflight(16);
    f = fake_start(serve_in_reverse, &too_many);
    client = connect_to(f);
    for (int i = 0; i < 160; i++) {
        snprintf(tag, sizeof(tag), "run %d", i);
        assert_ok(kops_submit(client, tagged_run(&t, tag), &tickets[i], &error));
    }
    for (int i = 0; i < 160; i++) {
        snprintf(tag, sizeof(tag), "run %d", i);
        assert_ok(kops_wait(client, tickets[i], 0, &result, &error));
        assert_string_equal(result.variant, tag);
    }
    kops_close(client);
    fake_stop(f);
    assert_int_equal(too_many, 0);
}

/* Never answers a run; hangs up when it is asked to. */
static void serve_no_runs(struct fake_connection *c, void *context)
{
    struct fake_request r;

    (void)context;
    while (fake_next(c, &r)) {
        if (!strcmp(r.method, "trim"))
            return;
        if (strcmp(r.method, "run"))
            fake_answer(c, &r);
    }
}

static void full_then_timeout_then_lost(void **state)
{
    struct fake *f;
    kops_client *client;
    struct kops_error error;
    kops_ticket tickets[4], more;
    struct tagged t;

    (void)state;
    fake_set_inflight(5);
    f = fake_start(serve_no_runs, NULL);
    client = connect_to(f);
    for (int i = 0; i < 4; i++)
        assert_ok(kops_submit(client, tagged_run(&t, "x"), &tickets[i], &error));
    assert_ok(kops_submit(client, tagged_run(&t, "x"), &more, &error));
    tagged_run(&t, "x");
    t.request.options.timeout_ms = 20;
    assert_int_equal(kops_submit(client, &t.request, &more, &error), KOPS_ERR_TIMEOUT);
    assert_int_equal(kops_ping(client, 20, &error), KOPS_ERR_TIMEOUT); /* every request counts */
    kops_close(client);                                                /* with runs under way */
    fake_stop(f);

    fake_set_inflight(6);
    f = fake_start(serve_no_runs, NULL);
    client = connect_to(f);
    for (int i = 0; i < 4; i++)
        assert_ok(kops_submit(client, tagged_run(&t, "x"), &tickets[i], &error));
    assert_int_equal(kops_trim(client, NULL, &error), KOPS_ERR_CONNECTION_LOST);
    for (int i = 0; i < 4; i++) {
        bool done = false;

        assert_ok(kops_poll(client, tickets[i], &done, &error));
        assert_true(done);
        assert_int_equal(kops_wait(client, tickets[i], 0, NULL, &error), KOPS_ERR_CONNECTION_LOST);
    }
    kops_close(client);
    fake_stop(f);
}

/* Reads nothing until it is told to, so that messages are cut in the middle by a full socket. */
static void a_long_request_is_sent_in_parts(void **state)
{
    struct fake *f;
    kops_client *client;
    struct kops_error error;
    struct kops_result result;
    kops_ticket tickets[40];
    struct tagged t;
    char *text = malloc(90001);

    (void)state;
    memset(text, 'y', 90000);
    text[90000] = 0;
    fake_set_inflight(64);
    f = fake_start(fake_serve_well, NULL);
    client = connect_to(f);
    for (int i = 0; i < 40; i++)
        assert_ok(kops_submit(client, tagged_run(&t, text), &tickets[i], &error));
    for (int i = 0; i < 40; i++)
        assert_ok(kops_wait(client, tickets[i], 0, &result, &error));
    free(text);
    kops_close(client);
    fake_stop(f);
}

/* Answers hello, then reads nothing until it is told to. */
static void serve_after_a_while(struct fake_connection *c, void *context)
{
    struct fake_request r;

    if (!fake_next(c, &r))
        return;
    fake_answer(c, &r);
    sem_wait(context);
    fake_serve_well(c, NULL);
}

/* The rest of a message that was given up in the middle goes first, and descriptors do not go with it. */
static void descriptors_go_with_their_own_message(void **state)
{
    char *text = malloc(90001);
    kops_client *client;
    struct kops_error error;
    kops_buffer *buffer;
    kops_ticket ticket;
    struct tagged t;
    struct fake *f;
    sem_t go;

    (void)state;
    memset(text, 'y', 90000);
    text[90000] = 0;
    sem_init(&go, 0, 0);
    fake_set_inflight(64);
    f = fake_start(serve_after_a_while, &go);
    client = connect_to(f);
    do {
        tagged_run(&t, text);
        t.request.options.timeout_ms = 20;
    } while (!kops_submit(client, &t.request, &ticket, &error));
    assert_int_equal(error.code, KOPS_ERR_TIMEOUT);
    sem_post(&go);
    assert_ok(kops_buffer_alloc_shared(client, 64, &buffer, &error));
    assert_ok(kops_ping(client, 0, &error));
    kops_buffer_release(buffer);
    kops_close(client);
    fake_stop(f);
    sem_destroy(&go);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_runs_do_not_deadlock),
        cmocka_unit_test(the_limit_is_kept_and_replies_find_their_call),
        cmocka_unit_test(full_then_timeout_then_lost),
        cmocka_unit_test(a_long_request_is_sent_in_parts),
        cmocka_unit_test(descriptors_go_with_their_own_message),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Many runs under way at once: order, limits, and no deadlock where both sides write. */
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "scene.h"

enum { MANY = 3000, LONG = 90000 };

static struct scene *start_with_inflight(unsigned inflight, fake_serve *serve, void *context,
                                         const struct kops_connect_options *options)
{
    fake_inflight = inflight;
    return scene_serve(serve, context, options);
}

/* Submits runs with a tag; NULL: of their number. */
static void submit_many(struct scene *s, const char *tag, kops_ticket *tickets, int n)
{
    char number[16];

    for (int i = 0; i < n; i++) {
        snprintf(number, sizeof(number), "run %d", i);
        assert_ok(kops_submit(s->client, tagged_run(&s->t, tag ? tag : number), &tickets[i], &s->error));
    }
}

/* One thread that reads a request and writes its reply, blocking in both, as a simple daemon does: when nobody reads
 * the replies, it reads no more requests. A socket holds some 280 small messages each way, or a part of a long one; the
 * fake's rings hold some 150: all fill, and both sides wait for room. */
TEST(many_runs_do_not_deadlock)
{
    static kops_ticket tickets[MANY];
    static char text[LONG + 1];
    const struct {
        const char *tag;
        int n;
        struct kops_connect_options by;
    } cases[] = {{"x", MANY, {.transport = KOPS_TRANSPORT_SOCKET}},
                 {text, 40, {.transport = KOPS_TRANSPORT_SOCKET}},
                 {"x", MANY, {.transport = KOPS_TRANSPORT_SHM, .spin_us = KOPS_NO_SPIN}},
                 {"x", MANY, {.transport = KOPS_TRANSPORT_SHM, .spin_us = 20}}};

    memset(text, 'y', LONG);
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        struct scene *s = start_with_inflight(MANY, fake_serve_well, NULL, &cases[k].by);
        struct kops_result result;

        print_message("case %zu\n", k);
        submit_many(s, cases[k].tag, tickets, cases[k].n);
        /* In an order that is not that of the replies. */
        for (int i = cases[k].n - 1; i >= 0; i--) {
            assert_ok(kops_wait(s->client, tickets[i], 0, &result, &s->error));
            assert_true(result.total_us == 20);
        }
        scene_stop(s);
    }
}

enum { LIMIT = 16 };

/* Lets requests pile up to the limit, sees that no more comes, then answers the newest first. */
static void serve_in_reverse(struct fake_connection *c, void *context)
{
    unsigned *too_many = context, n = 0;
    struct fake_request r, held[LIMIT];

    while (fake_next(c, &r)) {
        char byte;

        if (!r.tag[0]) {
            fake_answer(c, &r);
            continue;
        }
        held[n] = r;
        if (++n < LIMIT)
            continue;
        *too_many += c->length > 0 || recv(c->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) > 0;
        while (n)
            n--, fake_reply_run(c, held[n].msgid, held[n].tag);
    }
}

TEST(the_limit_is_kept_and_replies_find_their_call)
{
    unsigned too_many = 0;
    struct scene *s = start_with_inflight(LIMIT, serve_in_reverse, &too_many, NULL);
    struct kops_result result;
    kops_ticket tickets[10 * LIMIT];
    char tag[16];

    submit_many(s, NULL, tickets, 10 * LIMIT);
    for (int i = 0; i < 10 * LIMIT; i++) {
        snprintf(tag, sizeof(tag), "run %d", i);
        assert_ok(kops_wait(s->client, tickets[i], 0, &result, &s->error));
        assert_string_equal(result.variant, tag);
    }
    scene_stop(s);
    assert_int_equal(too_many, 0);
}

TEST(full_then_timeout)
{
    struct scene *s = start_with_inflight(5, scripted_serve, NULL, NULL);
    kops_ticket tickets[5], more;

    scene_script(s, "_*", NULL);
    submit_many(s, "x", tickets, 5);
    tagged_run(&s->t, "x");
    s->t.request.options.timeout_ms = 20;
    assert_int_equal(kops_submit(s->client, &s->t.request, &more, &s->error), KOPS_ERR_TIMEOUT);
    assert_int_equal(kops_ping(s->client, 20, &s->error), KOPS_ERR_TIMEOUT); /* every request counts */
    scene_stop(s);                                                           /* with runs under way */
}

/* Pipelined runs are the caller's to repeat. */
SCENE(unanswered_then_lost)
{
    kops_ticket tickets[4];

    scene_script(s, "____x*", "run trim");
    submit_many(s, "x", tickets, 4);
    assert_int_equal(kops_trim(s->client, NULL, &s->error), KOPS_ERR_CONNECTION_LOST);
    for (int i = 0; i < 4; i++) {
        bool done = false;

        assert_ok(kops_poll(s->client, tickets[i], &done, &s->error));
        assert_true(done);
        assert_int_equal(kops_wait(s->client, tickets[i], 0, NULL, &s->error), KOPS_ERR_CONNECTION_LOST);
        assert_non_null(strstr(s->error.message, "may or may not have run"));
    }
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
TEST(descriptors_go_with_their_own_message)
{
    static char text[LONG + 1];
    kops_ticket ticket;
    struct scene *s;
    sem_t go;

    memset(text, 'y', LONG);
    sem_init(&go, 0, 0);
    s = scene_serve(serve_after_a_while, &go, NULL);
    do {
        tagged_run(&s->t, text);
        s->t.request.options.timeout_ms = 20;
    } while (!kops_submit(s->client, &s->t.request, &ticket, &s->error));
    assert_int_equal(s->error.code, KOPS_ERR_TIMEOUT);
    sem_post(&go);
    scene_memory(s, 64);
    assert_ok(kops_ping(s->client, 0, &s->error));
    scene_stop(s);
    sem_destroy(&go);
}

/* ---- threads: each gets its own replies; worth most under ThreadSanitizer ---- */

enum { THREADS = 8, RUNS = 200 };

/* The variant of the reply is the tag of the request. */
static void serve_echo(struct fake_connection *c, void *context)
{
    struct fake_request r;

    while (fake_next(c, &r)) {
        if (r.tag[0])
            fake_reply_run(c, r.msgid, r.tag);
        else
            fake_answer(c, &r);
    }
}

static void *mixed_work(void *client)
{
    static atomic_int threads;
    const int number = atomic_fetch_add(&threads, 1);

    for (int i = 0; i < RUNS; i++) {
        struct kops_result first, second;
        kops_buffer *buffer = NULL;
        struct tagged t, u;
        kops_ticket ticket;
        char tag[2][16];

        snprintf(tag[0], sizeof(tag[0]), "%d.%d a", number, i);
        snprintf(tag[1], sizeof(tag[1]), "%d.%d b", number, i);
        if (kops_submit(client, tagged_run(&t, tag[0]), &ticket, NULL) ||
            kops_run(client, tagged_run(&u, tag[1]), &second, NULL) || kops_wait(client, ticket, 0, &first, NULL) ||
            strcmp(first.variant, tag[0]) != 0 || strcmp(second.variant, tag[1]) != 0)
            return "a run failed, or has another one's result";
        if (i % 16 == 0 && kops_buffer_alloc_shared(client, 4096, &buffer, NULL))
            return "no memory";
        kops_buffer_release(buffer);
    }
    return NULL;
}

TEST(every_thread_gets_its_own_replies)
{
    static const struct kops_connect_options by[] = {{.transport = KOPS_TRANSPORT_SOCKET},
                                                     {.transport = KOPS_TRANSPORT_SHM, .spin_us = 20}};

    for (int i = 0; i < 2; i++) {
        struct scene *s = start_with_inflight(12, serve_echo, NULL, &by[i]); /* less than the threads want together */

        in_threads(THREADS, mixed_work, s->client, 0);
        scene_stop(s);
    }
}

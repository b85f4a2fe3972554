/* Messages through shared memory: who takes it, what goes where, what happens when it fills, sleeps or is broken. */
#include <poll.h>
#include <sched.h>
#include <stdio.h>

#include "api/native.h"
#include "base/clock.h"
#include "proto/ring.h"
#include "scene.h"

static struct scene *start_by(enum kops_transport transport, unsigned spin_us, fake_serve *serve, void *context)
{
    return scene_serve(serve, context, &(struct kops_connect_options){.transport = transport, .spin_us = spin_us});
}

static struct scene *start(unsigned spin_us, fake_serve *serve, void *context)
{
    return start_by(KOPS_TRANSPORT_SHM, spin_us, serve, context);
}

TEST(what_fits_goes_through_the_ring)
{
    static const unsigned spins[] = {KOPS_NO_SPIN, 50};

    for (int i = 0; i < 2; i++) {
        struct scene *s;
        struct kops_result result;
        struct scripted seen;
        kops_buffer *buffer;

        fake_device = "GPU-0"; /* whose memory the daemon makes */
        s = start(spins[i], scripted_serve, NULL);
        assert_ok(kops_ping(s->client, 0, &s->error));
        assert_ok(kops_run(s->client, tagged_run(&s->t, "x"), &result, &s->error));
        assert_string_equal(result.variant, "simple");
        assert_ok(kops_buffer_alloc_shared(s->client, 64, &buffer, &s->error)); /* has a descriptor */
        kops_buffer_release(buffer);
        assert_ok(kops_buffer_alloc(s->client, 64, NULL, &buffer, &s->error)); /* its reply has one */
        kops_buffer_release(buffer);
        assert_ok(kops_ping(s->client, 0, &s->error));
        seen = scene_seen(s);
        assert_int_equal(seen.by_socket, 3); /* two hellos, one register */
        assert_int_equal(seen.by_ring, 6);   /* pings, run, alloc, releases */
        assert_int_equal(seen.with_fds_by_ring, 0);
        scene_stop(s);
    }
}

TEST(who_takes_the_ring)
{
    static const struct {
        enum kops_transport transport;
        const char *environment;
        unsigned by_ring;
    } cases[] = {{KOPS_TRANSPORT_SOCKET, NULL, 0},
                 {KOPS_TRANSPORT_AUTO, NULL, 0}, /* the daemon sleeps at once: no gain */
                 {KOPS_TRANSPORT_AUTO, "shm", 1},
                 {KOPS_TRANSPORT_SOCKET, "shm", 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kops_connect_options refused = {.transport = KOPS_TRANSPORT_SHM};
        kops_client *other = NULL;
        struct scene *s;

        print_message("case %zu\n", i);
        unsetenv("KOPS_TRANSPORT");
        if (cases[i].environment)
            setenv("KOPS_TRANSPORT", cases[i].environment, 1);
        s = start_by(cases[i].transport, 0, scripted_serve, NULL);
        assert_ok(kops_ping(s->client, 0, &s->error));
        assert_int_equal(scene_seen(s).by_ring, cases[i].by_ring);
        fake_offers_little = true; /* to the next client, which wants it */
        refused.socket = fake_path(s->fake);
        assert_int_equal(kops_connect(&refused, &other, NULL), KOPS_ERR_UNSUPPORTED);
        scene_stop(s);
    }
    unsetenv("KOPS_TRANSPORT");
}

enum { MANY = 3000, LONG = 50000 };

/* Notes in which order runs come and by which way. */
struct order {
    char tags[12][8];
    bool by_ring[12];
    unsigned n;
};

static void serve_noting(struct fake_connection *c, void *context)
{
    struct order *o = context;
    struct fake_request r;

    while (fake_next(c, &r)) {
        if (r.tag[0] && o->n < 12) {
            o->by_ring[o->n] = c->by_ring;
            memcpy(o->tags[o->n++], r.tag, 6);
        }
        fake_answer(c, &r);
    }
}

TEST(long_messages_keep_their_place)
{
    static char text[LONG + 1];
    kops_ticket tickets[12];
    char tag[8];

    memset(text, 'l', LONG);
    for (int k = 0; k < 2; k++) { /* whichever stream the daemon looks at first */
        struct order o = {.n = 0};
        struct scene *s = start(0, serve_noting, &o);

        fake_prefers_socket = k == 1;
        for (int i = 0; i < 12; i++) {
            snprintf(tag, sizeof(tag), "%06d", i);
            memcpy(text, tag, 6);
            assert_ok(kops_submit(s->client, tagged_run(&s->t, i % 4 == 3 ? text : tag), &tickets[i], &s->error));
        }
        for (int i = 0; i < 12; i++)
            assert_ok(kops_wait(s->client, tickets[i], 0, NULL, &s->error));
        scene_stop(s);
        assert_int_equal(o.n, 12);
        for (unsigned i = 0; i < 12; i++) {
            snprintf(tag, sizeof(tag), "%06u", i);
            assert_string_equal(o.tags[i], tag);
            assert_int_equal(o.by_ring[i], i % 4 != 3);
        }
    }
}

static void wait_for_the_client_to_go(struct fake_connection *c)
{
    struct pollfd end = {.fd = c->fd, .events = POLLRDHUP};

    while (poll(&end, 1, -1) < 0)
        ;
}

/* Breaks the words that the daemon writes when it is sent a trim, and reads nothing more. */
struct breaking {
    bool hang_up, answer;
    uint64_t head_add, tail_add;
};

static void serve_breaking(struct fake_connection *c, void *context)
{
    const struct breaking *b = context;
    struct fake_request r;

    while (fake_next(c, &r)) {
        struct ring_page *page;

        if (!c->by_ring || strcmp(r.method, "trim")) {
            fake_answer(c, &r);
            continue;
        }
        if (b->hang_up)
            return;
        if (b->answer)
            fake_answer(c, &r);
        page = fake_shm_page(c);
        atomic_fetch_add(&page->reply.head, b->head_add);
        atomic_fetch_add(&page->request.tail, b->tail_add);
        fake_shm_wake(c);
        wait_for_the_client_to_go(c);
        return;
    }
}

TEST(a_broken_ring_ends_the_connection)
{
    static const struct breaking cases[] = {
        {.hang_up = true},
        {.head_add = 1U << 20},   /* more than the ring holds */
        {.head_add = UINT64_MAX}, /* backwards */
        {.head_add = 64},         /* zeros that are no reply */
    };

    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        struct breaking b = cases[i / 2];
        struct scene *s = start(i % 2 ? 20 : KOPS_NO_SPIN, serve_breaking, &b);

        print_message("case %zu\n", i);
        assert_ok(kops_ping(s->client, 0, &s->error));
        assert_int_equal(kops_trim(s->client, NULL, &s->error),
                         b.hang_up ? KOPS_ERR_CONNECTION_LOST : KOPS_ERR_BAD_REPLY);
        assert_ok(kops_ping(s->client, 0, &s->error)); /* on a new connection, with new rings */
        scene_stop(s);
    }
}

/* Greets, answers one ping, and then says nonsense by the socket when there is something in the ring to read. */
static void serve_nonsense(struct fake_connection *c, void *context)
{
    atomic_uint *connections = context;
    struct fake_request r;
    struct ring_page *page;

    if (atomic_fetch_add(connections, 1)) {
        fake_serve_well(c, NULL);
        return;
    }
    while (fake_next(c, &r)) {
        fake_answer(c, &r);
        if (!c->by_ring)
            continue;
        page = fake_shm_page(c);
        while (atomic_load(&page->request.head) == atomic_load(&page->request.tail))
            sched_yield();
        fake_send(c, "\xc1", 1, NULL, 0);
        wait_for_the_client_to_go(c);
        return;
    }
}

/* A daemon that talks nonsense is there: it may read, and run, what it had not read when the client gave it up. */
TEST(who_gives_up_does_not_repeat)
{
    atomic_uint connections = 0;
    struct scene *s = start(KOPS_NO_SPIN, serve_nonsense, &connections);

    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(kops_trim(s->client, NULL, &s->error), KOPS_ERR_BAD_REPLY);
    assert_int_equal(atomic_load(&connections), 1);
    assert_ok(kops_ping(s->client, 0, &s->error));
    scene_stop(s);
}

/* The daemon's index of what it has read is looked at when the ring seems full. */
TEST(so_does_a_broken_index_of_the_reader)
{
    static const uint64_t broken[] = {1U << 30, UINT64_MAX - 1000};

    for (int k = 0; k < 2; k++) {
        struct breaking b = {.answer = true, .tail_add = broken[k]};
        kops_ticket first, ticket;
        uint32_t generation;
        struct scene *s;

        fake_inflight = MANY;
        s = start(0, serve_breaking, &b);
        generation = native_generation(s->client, &(struct patience){.ms = 0}, &s->error);
        (void)kops_trim(s->client, NULL, &s->error); /* the answer is no trim's: only that it came counts */
        assert_ok(kops_submit(s->client, tagged_run(&s->t, "x"), &first, &s->error));
        /* One that was not begun is sent anew, on a new connection. */
        for (int i = 0; i < MANY && native_generation(s->client, &(struct patience){.ms = 0}, &s->error) == generation;
             i++)
            (void)kops_submit(s->client, tagged_run(&s->t, "x"), &ticket, &s->error);
        assert_int_not_equal(native_generation(s->client, &(struct patience){.ms = 0}, &s->error), generation);
        assert_int_equal(kops_wait(s->client, first, 0, NULL, &s->error), KOPS_ERR_CONNECTION_LOST);
        scene_stop(s);
    }
}

static int ping_and_close(void *client)
{
    const enum kops_code r = kops_ping(client, 0, NULL);

    kops_close(client);
    return r != KOPS_OK;
}

TEST(a_child_has_rings_of_its_own)
{
    struct scene *s = start(0, scripted_serve, NULL);

    assert_ok(kops_ping(s->client, 0, &s->error));
    in_child(ping_and_close, s->client);
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(scene_seen(s).by_ring, 3);
    assert_int_equal(scene_seen(s).by_socket, 4);
    scene_stop(s);
}

/* ---- waiting by the daemon's forecast ---- */

enum { LONG_US = 60 * 1000 * 1000, SHORT_US = 20 * 1000 /* of polling, without a forecast */ };

struct forecast {
    uint64_t from_ns, to_ns; /* behind the request's arrival */
    uint64_t watch_ns;       /* for so long the daemon looks whether the client sleeps */
    uint64_t watch_more_ns;  /* and so long once it has taken the forecast back */
    bool slept;
};

static bool sleeps_until(struct ring_page *page, uint64_t until)
{
    bool slept;

    while (!(slept = atomic_load(&page->reply.consumer_sleeps) != 0) && clock_ns() < until)
        sched_yield();
    return slept;
}

static void serve_with_forecast(struct fake_connection *c, void *context)
{
    struct forecast *f = context;
    struct fake_request r;

    while (fake_next(c, &r)) {
        if (!strcmp(r.method, "ping") && c->by_ring) {
            struct ring_page *page = fake_shm_page(c);
            const uint64_t now = clock_ns();

            ring_window_set(page, (struct wait_window){now + f->from_ns, now + f->to_ns});
            f->slept = sleeps_until(page, now + f->watch_ns);
            ring_window_set(page, (struct wait_window){0});
            f->slept = f->slept || sleeps_until(page, clock_ns() + f->watch_more_ns);
        }
        fake_answer(c, &r);
    }
}

/* Whether the client, which polls for `poll_us` by itself, sleeps while it waits by the forecast. */
static bool sleeps_by(struct forecast f, unsigned poll_us)
{
    struct scene *s = start(poll_us, serve_with_forecast, &f);

    assert_ok(kops_ping(s->client, 0, &s->error));
    scene_stop(s);
    return f.slept;
}

/* A client that would poll for a minute sleeps, since the daemon says that the reply is a minute away; the bell ends
 * the sleep all the same. One that would sleep after 20 ms polls on, since the reply is near. */
TEST(a_client_waits_by_the_forecast)
{
    const uint64_t second = 1000000000;

    assert_true(sleeps_by((struct forecast){60 * second, 61 * second, .watch_ns = 20 * second}, LONG_US));
    assert_false(sleeps_by((struct forecast){0, 60 * second, .watch_ns = second / 5}, SHORT_US));
}

/* The daemon takes the forecast back before it writes the reply. A client whose own polling would be over by then does
 * not fall asleep between the two: a wake-up would make each long call later. */
TEST(a_client_polls_on_when_the_forecast_has_gone)
{
    const uint64_t ms = 1000000;

    assert_false(
        sleeps_by((struct forecast){0, 60000 * ms, .watch_ns = 300 * ms, .watch_more_ns = 20 * ms}, 10 * SHORT_US));
}

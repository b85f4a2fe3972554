/* Messages through shared memory: who takes it, what goes where, what happens when it fills, sleeps or is broken. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/native.h"
#include "base/clock.h"
#include "proto/ring.h"
#include "test.h"

static const char *const with_shm[] = {"memfd", "shm", NULL};

static kops_client *connect_by(const struct fake *f, enum kops_transport transport, unsigned spin_us)
{
    struct kops_connect_options options = {.socket = fake_path(f), .transport = transport, .spin_us = spin_us};
    struct kops_error error;
    kops_client *client = NULL;

    if (kops_connect(&options, &client, &error))
        fail_msg("connect: %s", error.message);
    return client;
}

/* Ways that requests came. */
struct ways {
    atomic_uint by_ring, by_socket, with_fds_by_ring;
};

static void serve_counting(struct fake_connection *c, void *context)
{
    struct ways *w = context;
    struct fake_request r;

    while (fake_next(c, &r)) {
        atomic_fetch_add(c->by_ring ? &w->by_ring : &w->by_socket, 1);
        atomic_fetch_add(&w->with_fds_by_ring, c->by_ring && r.n_fds);
        fake_answer(c, &r);
    }
}

static void what_fits_goes_through_the_ring(void **state)
{
    static const unsigned spins[] = {KOPS_NO_SPIN, 50};
    struct kops_error error;

    (void)state;
    fake_set_features(with_shm);
    fake_set_device("GPU-0"); /* whose memory the daemon makes */
    for (int i = 0; i < 2; i++) {
        struct ways w = {0};
        struct fake *f = fake_start(serve_counting, &w);
        kops_client *client = connect_by(f, KOPS_TRANSPORT_SHM, spins[i]);
        kops_buffer *buffer;
        struct kops_result result;
        struct tagged t;

        assert_ok(kops_ping(client, 0, &error));
        assert_ok(kops_run(client, tagged_run(&t, "x"), &result, &error));
        assert_string_equal(result.variant, "simple");
        assert_ok(kops_buffer_alloc_shared(client, 64, &buffer, &error)); /* has a descriptor */
        kops_buffer_release(buffer);
        assert_ok(kops_buffer_alloc(client, 64, NULL, &buffer, &error)); /* its reply has one */
        kops_buffer_release(buffer);
        assert_ok(kops_ping(client, 0, &error));
        kops_close(client);
        fake_stop(f);
        assert_int_equal(w.by_socket, 3); /* two hellos, one register */
        assert_true(w.by_ring >= 6);      /* pings, run, alloc, releases */
        assert_int_equal(w.with_fds_by_ring, 0);
    }
    fake_set_device(NULL);
    fake_set_features(NULL);
}

static void only_where_it_is_offered(void **state)
{
    struct kops_error error;
    struct ways w = {0};
    struct fake *f = fake_start(serve_counting, &w);
    struct kops_connect_options options = {.socket = fake_path(f), .transport = KOPS_TRANSPORT_SHM};
    kops_client *client = NULL;

    (void)state;
    assert_int_equal(kops_connect(&options, &client, &error), KOPS_ERR_UNSUPPORTED);
    fake_set_features(with_shm);
    client = connect_by(f, KOPS_TRANSPORT_SOCKET, 0);
    assert_ok(kops_ping(client, 0, &error));
    kops_close(client);
    client = connect_by(f, KOPS_TRANSPORT_AUTO, 0); /* the daemon sleeps at once: no gain */
    assert_ok(kops_ping(client, 0, &error));
    kops_close(client);
    fake_stop(f);
    assert_int_equal(w.by_ring, 0);
    fake_set_features(NULL);
}

static void the_environment_decides_for_auto(void **state)
{
    struct kops_error error;
    struct ways w = {0};
    struct fake *f;
    kops_client *client;

    (void)state;
    fake_set_features(with_shm);
    f = fake_start(serve_counting, &w);
    setenv("KOPS_TRANSPORT", "shm", 1);
    client = connect_by(f, KOPS_TRANSPORT_AUTO, 0);
    assert_ok(kops_ping(client, 0, &error));
    kops_close(client);
    assert_int_equal(w.by_ring, 1);
    client = connect_by(f, KOPS_TRANSPORT_SOCKET, 0);
    assert_ok(kops_ping(client, 0, &error));
    kops_close(client);
    unsetenv("KOPS_TRANSPORT");
    fake_stop(f);
    assert_int_equal(w.by_ring, 1);
    fake_set_features(NULL);
}

enum { MANY = 3000 };

/* The fake's rings hold some 150 messages: both fill, both sides wait for room. */
static void full_rings_do_not_deadlock(void **state)
{
    static const unsigned spins[] = {KOPS_NO_SPIN, 20};
    static kops_ticket tickets[MANY];
    struct kops_error error;
    struct kops_result result;

    (void)state;
    fake_set_features(with_shm);
    fake_set_inflight(MANY);
    for (int k = 0; k < 2; k++) {
        struct fake *f = fake_start(fake_serve_well, NULL);
        kops_client *client = connect_by(f, KOPS_TRANSPORT_SHM, spins[k]);
        struct tagged t;

        for (int i = 0; i < MANY; i++)
            assert_ok(kops_submit(client, tagged_run(&t, "x"), &tickets[i], &error));
        for (int i = MANY - 1; i >= 0; i--) {
            assert_ok(kops_wait(client, tickets[i], 0, &result, &error));
            assert_true(result.total_us == 20);
        }
        kops_close(client);
        fake_stop(f);
    }
    fake_set_inflight(64);
    fake_set_features(NULL);
}

/* Notes in which order runs come and by which way. */
struct order {
    char tags[64][8];
    bool by_ring[64];
    unsigned n;
};

static void serve_noting(struct fake_connection *c, void *context)
{
    struct order *o = context;
    struct fake_request r;

    while (fake_next(c, &r)) {
        if (!strcmp(r.method, "run") && o->n < 64) {
            const msgpack_object *tag = fake_param(fake_param(&r.params, "attrs"), "tag");

            o->by_ring[o->n] = c->by_ring;
            snprintf(o->tags[o->n++], sizeof(o->tags[0]), "%.*s", (int)(tag->via.str.size < 7 ? tag->via.str.size : 7),
                     tag->via.str.ptr);
        }
        fake_answer(c, &r);
    }
}

static void long_messages_keep_their_place(void **state)
{
    char *text = malloc(50001), tag[8];
    struct kops_error error;
    kops_ticket tickets[12];
    struct tagged t;

    (void)state;
    fake_set_features(with_shm);
    for (int k = 0; k < 2; k++) { /* whichever stream the daemon looks at first */
        struct order o = {.n = 0};
        struct fake *f = fake_start(serve_noting, &o);
        kops_client *client = connect_by(f, KOPS_TRANSPORT_SHM, 0);

        fake_prefer_socket(k == 1);
        for (int i = 0; i < 12; i++) {
            memset(text, 'l', 50000);
            text[50000] = 0;
            snprintf(tag, sizeof(tag), "%06d", i);
            memcpy(text, tag, 6);
            assert_ok(kops_submit(client, tagged_run(&t, i % 4 == 3 ? text : tag), &tickets[i], &error));
        }
        for (int i = 0; i < 12; i++)
            assert_ok(kops_wait(client, tickets[i], 0, NULL, &error));
        kops_close(client);
        fake_stop(f);
        assert_int_equal(o.n, 12);
        for (unsigned i = 0; i < 12; i++) {
            snprintf(tag, sizeof(tag), "%06u", i);
            assert_memory_equal(o.tags[i], tag, 6);
            assert_int_equal(o.by_ring[i], i % 4 != 3);
        }
    }
    free(text);
    fake_prefer_socket(false);
    fake_set_features(NULL);
}

/* Answers a run when it is told to. */
static void serve_held(struct fake_connection *c, void *context)
{
    struct fake_request r;

    while (fake_next(c, &r)) {
        if (!strcmp(r.method, "run"))
            sem_wait(context);
        fake_answer(c, &r);
    }
}

static void a_long_message_travels_alone(void **state)
{
    char *text = malloc(50001);
    struct kops_error error;
    kops_ticket first, second;
    kops_client *client;
    struct tagged t;
    struct fake *f;
    sem_t go;

    (void)state;
    memset(text, 'l', 50000);
    text[50000] = 0;
    sem_init(&go, 0, 0);
    fake_set_features(with_shm);
    f = fake_start(serve_held, &go);
    client = connect_by(f, KOPS_TRANSPORT_SHM, 0);
    assert_ok(kops_submit(client, tagged_run(&t, "short"), &first, &error));
    tagged_run(&t, text);
    t.request.options.timeout_ms = 20;
    assert_int_equal(kops_submit(client, &t.request, &second, &error), KOPS_ERR_TIMEOUT); /* the first is unanswered */
    sem_post(&go);
    assert_ok(kops_wait(client, first, 0, NULL, &error));
    assert_ok(kops_submit(client, &t.request, &first, &error));
    tagged_run(&t, "short");
    t.request.options.timeout_ms = 20;
    assert_int_equal(kops_submit(client, &t.request, &second, &error), KOPS_ERR_TIMEOUT); /* the long one is */
    sem_post(&go);
    assert_ok(kops_wait(client, first, 0, NULL, &error));
    assert_ok(kops_submit(client, &t.request, &second, &error));
    sem_post(&go);
    assert_ok(kops_wait(client, second, 0, NULL, &error));
    kops_close(client);
    fake_stop(f);
    sem_destroy(&go);
    free(text);
    fake_set_features(NULL);
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
        struct pollfd end = {.fd = c->fd, .events = POLLRDHUP};
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
        while (poll(&end, 1, -1) < 0)
            ;
        return;
    }
}

static void a_broken_ring_ends_the_connection(void **state)
{
    static const struct breaking cases[] = {
        {.hang_up = true},
        {.head_add = 1U << 20},   /* more than the ring holds */
        {.head_add = UINT64_MAX}, /* backwards */
        {.head_add = 64},         /* zeros that are no reply */
    };
    struct kops_error error;

    (void)state;
    fake_set_features(with_shm);
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        struct breaking b = cases[i / 2];
        struct fake *f = fake_start(serve_breaking, &b);
        kops_client *client = connect_by(f, KOPS_TRANSPORT_SHM, i % 2 ? 20 : KOPS_NO_SPIN);

        assert_ok(kops_ping(client, 0, &error));
        assert_int_equal(kops_trim(client, NULL, &error), b.hang_up ? KOPS_ERR_CONNECTION_LOST : KOPS_ERR_BAD_REPLY);
        assert_ok(kops_ping(client, 0, &error)); /* on a new connection, with new rings */
        kops_close(client);
        fake_stop(f);
    }
    fake_set_features(NULL);
}

/* Greets, answers one ping, and then says nonsense by the socket when there is something in the ring to read. */
static void serve_nonsense(struct fake_connection *c, void *context)
{
    struct pollfd end = {.fd = c->fd, .events = POLLRDHUP};
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
        while (poll(&end, 1, -1) < 0)
            ;
        return;
    }
}

/* A daemon that talks nonsense is there: it may read, and run, what it had not read when the client gave it up. */
static void who_gives_up_does_not_repeat(void **state)
{
    atomic_uint connections = 0;
    struct kops_error error;
    struct fake *f;
    kops_client *client;

    (void)state;
    fake_set_features(with_shm);
    f = fake_start(serve_nonsense, &connections);
    client = connect_by(f, KOPS_TRANSPORT_SHM, KOPS_NO_SPIN);
    assert_ok(kops_ping(client, 0, &error));
    assert_int_equal(kops_trim(client, NULL, &error), KOPS_ERR_BAD_REPLY);
    assert_int_equal(atomic_load(&connections), 1);
    assert_ok(kops_ping(client, 0, &error));
    kops_close(client);
    fake_stop(f);
    fake_set_features(NULL);
}

/* The daemon's index of what it has read is looked at when the ring seems full. */
static void so_does_a_broken_index_of_the_reader(void **state)
{
    static const uint64_t broken[] = {1U << 30, UINT64_MAX - 1000};
    struct kops_error error;
    struct tagged t;

    (void)state;
    fake_set_features(with_shm);
    fake_set_inflight(MANY);
    for (int k = 0; k < 2; k++) {
        struct breaking b = {.answer = true, .tail_add = broken[k]};
        struct fake *f = fake_start(serve_breaking, &b);
        kops_client *client = connect_by(f, KOPS_TRANSPORT_SHM, 0);
        const uint32_t generation = native_generation(client, 0, &error);
        kops_ticket first, ticket;

        (void)kops_trim(client, NULL, &error); /* the answer is no trim's: only that it came counts */
        assert_ok(kops_submit(client, tagged_run(&t, "x"), &first, &error));
        /* One that was not begun is sent anew, on a new connection. */
        for (int i = 0; i < MANY && native_generation(client, 0, &error) == generation; i++)
            (void)kops_submit(client, tagged_run(&t, "x"), &ticket, &error);
        assert_int_not_equal(native_generation(client, 0, &error), generation);
        assert_int_equal(kops_wait(client, first, 0, NULL, &error), KOPS_ERR_CONNECTION_LOST);
        kops_close(client);
        fake_stop(f);
    }
    fake_set_inflight(64);
    fake_set_features(NULL);
}

/* Several threads on one client: one reads for all. */
static void *ping_often(void *client)
{
    struct kops_error error;

    for (int i = 0; i < 500; i++)
        if (kops_ping(client, 0, &error))
            return (void *)1;
    return NULL;
}

static void threads_share_the_rings(void **state)
{
    pthread_t threads[4];
    kops_client *client;
    struct fake *f;

    (void)state;
    fake_set_features(with_shm);
    f = fake_start(fake_serve_well, NULL);
    client = connect_by(f, KOPS_TRANSPORT_SHM, 20);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, ping_often, client);
    for (int i = 0; i < 4; i++) {
        void *failed;

        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    kops_close(client);
    fake_stop(f);
    fake_set_features(NULL);
}

/* A child makes rings of its own and leaves its parent's alone. */
static void a_child_has_rings_of_its_own(void **state)
{
    struct kops_error error;
    struct ways w = {0};
    kops_client *client;
    struct fake *f;
    int status;
    pid_t pid;

    (void)state;
    fake_set_features(with_shm);
    f = fake_start(serve_counting, &w);
    client = connect_by(f, KOPS_TRANSPORT_SHM, 0);
    assert_ok(kops_ping(client, 0, &error));
    pid = fork();
    if (pid == 0) {
        enum kops_code r = kops_ping(client, 0, &error);

        kops_close(client);
        _exit(r != KOPS_OK);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_ok(kops_ping(client, 0, &error));
    kops_close(client);
    fake_stop(f);
    assert_int_equal(w.by_ring, 3);
    assert_int_equal(w.by_socket, 4);
    fake_set_features(NULL);
}

/* ---- waiting by the daemon's forecast ---- */

enum { LONG_US = 60 * 1000 * 1000, SHORT_US = 20 * 1000 /* of polling, without a forecast */ };

struct forecast {
    uint64_t from_ns, to_ns; /* behind the request's arrival */
    uint64_t watch_ns;       /* for so long the daemon looks whether the client sleeps */
    bool slept;
};

static void serve_with_forecast(struct fake_connection *c, void *context)
{
    struct forecast *f = context;
    struct fake_request r;

    while (fake_next(c, &r)) {
        if (!strcmp(r.method, "ping") && c->by_ring) {
            struct ring_page *page = fake_shm_page(c);
            const uint64_t now = clock_ns();

            ring_window_set(page, (struct wait_window){now + f->from_ns, now + f->to_ns});
            while (!(f->slept = atomic_load(&page->reply.consumer_sleeps) != 0) && clock_ns() < now + f->watch_ns)
                sched_yield();
            ring_window_set(page, (struct wait_window){0});
        }
        fake_answer(c, &r);
    }
}

/* Whether the client, which polls for `poll_us` by itself, sleeps while it waits by the forecast. */
static bool sleeps_by(struct forecast f, unsigned poll_us)
{
    struct fake *fake;
    struct kops_error error;
    kops_client *client;

    fake_set_features(with_shm);
    fake = fake_start(serve_with_forecast, &f);
    client = connect_by(fake, KOPS_TRANSPORT_SHM, poll_us);
    assert_ok(kops_ping(client, 0, &error));
    kops_close(client);
    fake_stop(fake);
    fake_set_features(NULL);
    return f.slept;
}

/* A client that would poll for a minute sleeps, since the daemon says that the reply is a minute away; the bell ends
 * the sleep all the same. One that would sleep after 20 ms polls on, since the reply is near. */
static void a_client_waits_by_the_forecast(void **state)
{
    const uint64_t second = 1000000000;

    (void)state;
    assert_true(sleeps_by((struct forecast){60 * second, 61 * second, .watch_ns = 20 * second}, LONG_US));
    assert_false(sleeps_by((struct forecast){0, 60 * second, .watch_ns = second / 5}, SHORT_US));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_goes_through_the_ring),   cmocka_unit_test(only_where_it_is_offered),
        cmocka_unit_test(the_environment_decides_for_auto),  cmocka_unit_test(full_rings_do_not_deadlock),
        cmocka_unit_test(long_messages_keep_their_place),    cmocka_unit_test(a_long_message_travels_alone),
        cmocka_unit_test(a_broken_ring_ends_the_connection), cmocka_unit_test(so_does_a_broken_index_of_the_reader),
        cmocka_unit_test(threads_share_the_rings),           cmocka_unit_test(a_child_has_rings_of_its_own),
        cmocka_unit_test(who_gives_up_does_not_repeat),      cmocka_unit_test(a_client_waits_by_the_forecast),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

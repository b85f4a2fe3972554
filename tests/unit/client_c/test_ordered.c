/* Ordered calls: a fake daemon and a driver in host memory (tests/standin_cuda) that share a page of timelines. */
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>

#include "api/native.h"
#include "ordered_fake.h"
#include "session/client.h"

enum { MANY = 2000 };

#define SOCKET(name) TEST_OF(struct setting *s, name, begin_by_socket, end_setting)

SOCKET(an_op_has_its_place_on_the_stream)
{
    s->d.hold = true;
    close_gate();
    atomic_store(&words[1], 0);
    assert_ok(enqueue(s, "x"));
    assert_int_equal(cu.write(stream, words_address + 8, 7, 0), 0);
    while (!atomic_load(&s->d.requests)) /* it was sent, though the stream stands still */
        sched_yield();
    sem_post(&s->d.permits); /* would let it run if it did not wait for the stream */
    assert_int_not_equal(cu.stream_query(stream), 0);
    assert_int_equal(kops_synchronize(s->client, stream, 20, &s->error), KOPS_ERR_TIMEOUT);
    assert_int_equal(atomic_load(&words[1]), 0);
    open_gate();
    expect_end(s, KOPS_OK);
    finish(stream);
    assert_int_equal(atomic_load(&words[1]), 7);

    /* And what comes behind it waits for it. */
    assert_ok(enqueue(s, "x"));
    assert_int_equal(cu.write(stream, words_address + 8, 8, 0), 0);
    while (atomic_load(&s->d.requests) < 2)
        sched_yield();
    assert_int_not_equal(cu.stream_query(stream), 0);
    assert_int_equal(atomic_load(&words[1]), 7);
    sem_post(&s->d.permits);
    finish(stream);
    assert_int_equal(atomic_load(&words[1]), 8);
}

TEST(many_wait_for_room_and_not_for_each_other)
{
    fake_set_inflight(16);
    for (int k = 1; k <= 2; k++) {
        struct setting *s = start(k == 1 ? KOPS_TRANSPORT_SOCKET : KOPS_TRANSPORT_SHM, 0);

        for (int i = 0; i < MANY; i++)
            assert_ok(enqueue(s, "x"));
        assert_int_equal(native_enqueued(s->client), MANY);
        assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
        assert_true(native_completed(s->client, MANY));
        assert_int_equal(atomic_load(&s->d.requests), MANY);
        finish(stream);
        stop(s);
    }
    fake_set_inflight(64);
}

#define RING(name) TEST_OF(struct setting *s, name, begin_by_ring, end_setting)

RING(an_error_comes_with_the_next_call)
{
    int64_t number = 0;

    s->d.fail_tag = "bad";
    assert_ok(enqueue(s, "good"));
    assert_ok(enqueue(s, "bad"));
    expect_end(s, KOPS_ERR_DEVICE_ERROR);
    assert_true(kops_error_number(&s->error, "call", &number));
    assert_int_equal(number, 2);
    assert_non_null(strstr(s->error.message, "it broke"));
    expect_end(s, KOPS_OK); /* told once */
    finish(stream);

    assert_ok(enqueue(s, "bad"));
    while (!native_completed(s->client, 3))
        sched_yield();
    assert_int_equal(enqueue(s, "good"), KOPS_ERR_DEVICE_ERROR);
    assert_ok(enqueue(s, "good"));
    assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
    assert_int_equal(atomic_load(&s->d.requests), 4);
}

/* The op's name is one of hello's. */
static const struct kops_request *gemm(struct tagged *t)
{
    tagged_run(t, "x");
    t->request.op = "gemm";
    return &t->request;
}

static void enqueue_batch(struct setting *s, int n)
{
    assert_ok(kops_batch_begin(s->client, stream, &s->error));
    assert_int_equal(kops_batch_begin(s->client, stream, &s->error), KOPS_ERR_BAD_ARGUMENT);
    for (int i = 0; i < n; i++)
        assert_ok(kops_enqueue(s->client, gemm(&s->t), stream, &s->error));
    assert_ok(kops_batch_end(s->client, stream, &s->error));
    assert_int_equal(kops_batch_end(s->client, stream, &s->error), KOPS_ERR_BAD_ARGUMENT);
}

RING(a_batch_is_gathered_and_waited_for_once)
{
    int64_t number = 0;

    close_gate();
    enqueue_batch(s, 200);
    atomic_store(&words[1], 0);
    assert_int_equal(cu.write(stream, words_address + 8, 9, 0), 0);
    assert_false(native_completed(s->client, 1));
    open_gate();
    finish(stream);
    assert_int_equal(atomic_load(&words[1]), 9);
    assert_int_equal(atomic_load(&s->d.ops), 200);
    assert_true(atomic_load(&s->d.sequences) < 10);
    assert_int_equal(atomic_load(&s->d.sequences), atomic_load(&s->d.requests));
    expect_end(s, KOPS_OK);

    /* An error names the op within. */
    s->d.fail_tag = "any";
    s->d.fail_index = 2;
    enqueue_batch(s, 4);
    expect_end(s, KOPS_ERR_DEVICE_ERROR);
    assert_true(kops_error_number(&s->error, "call", &number));
    assert_int_equal(number, 203);
    assert_non_null(strstr(s->error.message, "gemm"));
}

/* By themselves and in batches, among ops; an error names the kernel, which may be freed meanwhile. */
RING(kernels_are_launched_on_a_stream)
{
    const struct kops_source source = {.text = "void f();"};
    const struct kops_signature signature = {.entry = "mine"};
    const struct kops_argument args[] = {kops_arg_tensor(&(struct kops_tensor){.dtype = KOPS_F32, .rank = 1}),
                                         kops_arg_int(3)};
    const struct kops_launch_options on_stream = {.options = {.stream = 1}};
    kops_kernel *kernel;

    assert_ok(kops_kernel_compile(s->client, &source, &signature, &kernel, NULL, &s->error));
    close_gate();
    for (int i = 0; i < 3; i++)
        assert_ok(kops_kernel_enqueue(kernel, args, 2, NULL, stream, &s->error));
    assert_false(native_completed(s->client, 1));
    open_gate();
    expect_end(s, KOPS_OK);
    assert_int_equal(atomic_load(&s->d.ops), 3);
    assert_int_equal(atomic_load(&s->d.sequences), 0);
    assert_int_equal(kops_kernel_enqueue(kernel, args, 2, &on_stream, stream, &s->error), KOPS_ERR_BAD_ARGUMENT);

    s->d.fail_tag = "any";
    s->d.fail_index = 1;
    assert_ok(kops_batch_begin(s->client, stream, &s->error));
    for (int i = 0; i < 2; i++) {
        assert_ok(kops_enqueue(s->client, gemm(&s->t), stream, &s->error));
        assert_ok(kops_kernel_enqueue(kernel, args, 2, NULL, stream, &s->error));
    }
    kops_kernel_free(kernel);
    assert_int_equal(atomic_load(&s->d.released), 0);
    assert_ok(kops_batch_end(s->client, stream, &s->error));
    expect_end(s, KOPS_ERR_DEVICE_ERROR);
    assert_non_null(strstr(s->error.message, "call 5 (mine)"));
    assert_int_equal(atomic_load(&s->d.ops), 7);
    assert_int_equal(atomic_load(&s->d.sequences), 1);
}

/* Synchronising inside a batch sends what is gathered; a release does not overtake what uses the buffer. */
RING(gathered_ops_keep_their_order)
{
    kops_buffer *buffer;

    assert_ok(kops_buffer_alloc_shared(s->client, 64, &buffer, &s->error));
    assert_ok(kops_batch_begin(s->client, stream, &s->error));
    assert_ok(kops_enqueue(s->client, gemm(&s->t), stream, &s->error));
    kops_buffer_release(buffer);
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(atomic_load(&s->d.released), 0);
    expect_end(s, KOPS_OK);
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(atomic_load(&s->d.released), 2); /* behind one op */
    assert_ok(kops_batch_end(s->client, stream, &s->error));
}

/* Ids mean something else to the next daemon. */
SOCKET(releases_end_with_their_connection)
{
    kops_buffer *buffer;

    assert_ok(kops_buffer_alloc_shared(s->client, 64, &buffer, &s->error));
    assert_ok(enqueue(s, "x")); /* the connection has its page */
    expect_end(s, KOPS_OK);
    assert_ok(kops_batch_begin(s->client, stream, &s->error));
    assert_ok(kops_enqueue(s->client, gemm(&s->t), stream, &s->error));
    kops_buffer_release(buffer);
    shutdown(s->client->t.fd, SHUT_RDWR); /* seen when the batch is sent */
    assert_ok(kops_batch_end(s->client, stream, &s->error));
    expect_end(s, KOPS_ERR_CONNECTION_LOST);
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(atomic_load(&s->d.released), 0);
}

SOCKET(a_captured_stream_is_refused)
{
    void *graph = NULL;

    if (!cu.begin_capture || cu.begin_capture(stream, 1))
        skip();
    assert_int_equal(enqueue(s, "x"), KOPS_ERR_CAPTURING);
    assert_int_equal(kops_batch_begin(s->client, stream, &s->error), KOPS_ERR_CAPTURING);
    assert_int_equal(cu.end_capture(stream, &graph), 0);
    assert_ok(enqueue(s, "x"));
    expect_end(s, KOPS_OK);
    assert_int_equal(atomic_load(&s->d.requests), 1);
}

TEST(a_dead_daemon_releases_the_streams)
{
    for (int k = 0; k < 6; k++) {
        struct setting *s = start(k % 2 ? KOPS_TRANSPORT_SOCKET : KOPS_TRANSPORT_SHM, 0);
        enum kops_code r = KOPS_OK;
        int64_t number = 0;

        s->d.die_at = 10;
        s->d.die = (enum death[]){BEFORE_READY, BEFORE_DONE, BEFORE_REPLY}[k / 2];
        for (int i = 0; i < 50 && !r; i++)
            r = enqueue(s, "x");
        assert_int_equal(cu.synchronize(), 0);
        if (!r)
            r = kops_synchronize(s->client, stream, 0, &s->error);
        assert_int_equal(r, KOPS_ERR_CONNECTION_LOST);
        /* Of the ops that were under way, the first one is named. */
        assert_true(kops_error_number(&s->error, "call", &number));
        assert_int_equal(number, 10);
        assert_ok(enqueue(s, "x")); /* connects anew, with a new page */
        expect_end(s, KOPS_OK);
        assert_int_equal(cu.synchronize(), 0);
        stop(s);
    }
}

/* An op takes the device with it: that is told once, nothing is repeated, and what comes goes to the next daemon. */
TEST(a_lost_device_is_told_once)
{
    for (int k = 0; k < 2; k++) {
        struct setting *s = start(k ? KOPS_TRANSPORT_SOCKET : KOPS_TRANSPORT_SHM, 0);

        s->d.fail_tag = "bad";
        s->d.fail_code = "device_lost";
        s->d.die_at = 2;
        s->d.die = AFTER_REPLY;
        assert_ok(enqueue(s, "good"));
        assert_ok(enqueue(s, "bad"));
        expect_end(s, KOPS_ERR_DEVICE_LOST);
        assert_non_null(strstr(s->error.message, "call 2"));
        finish(stream);
        assert_ok(enqueue(s, "good"));
        expect_end(s, KOPS_OK);
        assert_int_equal(cu.synchronize(), 0);
        assert_int_equal(atomic_load(&s->d.requests), 3);
        stop(s);
    }
}

/* Also in the middle of a batch, part of which was sent. */
SOCKET(a_batch_that_cannot_end_well_ends)
{
    enum kops_code r = KOPS_OK;

    s->d.die_at = 2;
    s->d.die = BEFORE_DONE;
    assert_ok(kops_batch_begin(s->client, stream, &s->error));
    for (int i = 0; i < 30 && !r; i++)
        r = kops_enqueue(s->client, gemm(&s->t), stream, &s->error);
    (void)kops_batch_end(s->client, stream, &s->error);
    assert_int_equal(cu.synchronize(), 0);
    (void)kops_synchronize(s->client, stream, 0, &s->error);
    expect_end(s, KOPS_OK);
    assert_ok(enqueue(s, "x"));
    expect_end(s, KOPS_OK);
}

TEST(closing_releases_what_still_waits)
{
    struct setting *s = start(KOPS_TRANSPORT_SHM, 30);

    s->d.hold = true;
    assert_ok(enqueue(s, "x"));
    assert_ok(enqueue(s, "x"));
    kops_close(s->client);
    assert_int_equal(cu.synchronize(), 0);
    sem_post(&s->d.permits);
    sem_post(&s->d.permits);
    s->client = NULL;
    stop(s);
}

RING(streams_take_turns)
{
    unsigned used = 0;
    void *other;

    for (int i = 0; i < 600; i++) {
        assert_int_equal(cu.stream_create(&other, 1), 0);
        assert_ok(kops_enqueue(s->client, tagged_run(&s->t, "x"), other, &s->error));
        if (i % 3 == 0)
            assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
        finish(other);
        assert_int_equal(cu.stream_destroy(other), 0);
    }
    assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
    for (int i = 0; i < 256; i++)
        used += atomic_load(&s->d.streams[i]) > 0;
    assert_int_equal(used, 256);
    assert_int_equal(kops_enqueue(s->client, tagged_run(&s->t, "x"), KOPS_ALL_STREAMS, &s->error),
                     KOPS_ERR_BAD_ARGUMENT);
}

static void *without_context(void *argument)
{
    struct setting *s = argument;
    struct tagged t;

    return kops_enqueue(s->client, tagged_run(&t, "x"), stream, NULL) == KOPS_ERR_NO_CUDA ? NULL : "it was enqueued";
}

static int in_a_child(void *context_)
{
    struct setting *s = context_;

    return enqueue(s, "x") == KOPS_ERR_NO_CUDA && !kops_ping(s->client, 0, &s->error) ? 0 : 1;
}

RING(what_cannot_be_enqueued)
{
    assert_ok(enqueue(s, "x"));
    expect_end(s, KOPS_OK);
    in_threads(1, without_context, s, 0);
    tagged_run(&s->t, "x");
    s->t.request.options.stream = 3;
    assert_int_equal(kops_enqueue(s->client, &s->t.request, stream, &s->error), KOPS_ERR_BAD_ARGUMENT);
    in_child(in_a_child, s);
    assert_ok(enqueue(s, "x"));
    expect_end(s, KOPS_OK);
}

/* Each on a stream of its own, now and then in a batch, now and then blocking. */
static void *enqueue_often(void *argument)
{
    struct setting *s = argument;
    struct kops_error error;
    enum kops_code r = KOPS_OK;
    struct tagged t;
    void *own;

    if (cu.set(context) || cu.stream_create(&own, 1))
        return "no stream";
    for (int i = 0; i < 300 && !r; i++) {
        if (i % 50 == 10)
            r = kops_batch_begin(s->client, own, &error);
        if (!r)
            r = kops_enqueue(s->client, tagged_run(&t, "x"), own, &error);
        if (!r && i % 50 == 30)
            r = kops_batch_end(s->client, own, &error);
        if (!r && i % 70 == 0)
            r = kops_ping(s->client, 0, &error);
    }
    if (!r)
        r = kops_synchronize(s->client, own, 0, &error);
    return r || cu.stream_synchronize(own) || cu.stream_destroy(own) ? "it failed" : NULL;
}

RING(threads_enqueue_at_once)
{
    in_threads(4, enqueue_often, s, 0);
    assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
    assert_int_equal(atomic_load(&s->d.ops), 4 * 300);
    assert_int_equal(native_enqueued(s->client), 4 * 300);
    assert_true(native_completed(s->client, 4 * 300));
}

/* ---- pages of timelines, which the driver knows ---- */

enum { UNKNOWN = 999, PAGES_MAX = 64 };

struct pages {
    void *at[PAGES_MAX];
    unsigned n;
};

/* Shared memory that a device knows: pages of timelines, also of earlier tests. */
static struct pages registered_pages(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    struct pages pages = {.n = 0};
    char line[512];
    unsigned flags;
    void *page;

    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps))
        if (strstr(line, "/memfd:") && sscanf(line, "%p-", &page) == 1 && cu.host_flags(&flags, page) == 0) {
            assert_true(pages.n < PAGES_MAX);
            pages.at[pages.n++] = page;
        }
    fclose(maps);
    return pages;
}

static bool contains(const struct pages *pages, const void *page)
{
    for (unsigned i = 0; i < pages->n; i++)
        if (pages->at[i] == page)
            return true;
    return false;
}

/* A client with a page, which is not among those before; nothing is left to do on it. */
static struct setting *start_with_a_page(void **ret_page)
{
    const struct pages before = registered_pages();
    struct setting *s = start(KOPS_TRANSPORT_SHM, 30);
    struct pages now;

    assert_ok(enqueue(s, "x"));
    assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
    assert_int_equal(cu.synchronize(), 0);
    now = registered_pages();
    assert_int_equal(now.n, before.n + 1);
    for (unsigned i = 0; i < now.n; i++)
        if (!contains(&before, now.at[i]))
            *ret_page = now.at[i];
    return s;
}

/* Without a context. */
static void *close_client(void *client)
{
    kops_close(client);
    return NULL;
}

TEST(a_page_is_given_back_in_any_thread)
{
    void *page = NULL;
    struct setting *s = start_with_a_page(&page);
    struct pages now;

    in_threads(1, close_client, s->client, 0);
    s->client = NULL;
    now = registered_pages();
    assert_false(contains(&now, page));
    stop(s);
}

TEST(a_page_that_the_driver_keeps_keeps_its_addresses)
{
    void *page = NULL;
    struct setting *s = start_with_a_page(&page);
    const struct standin_fault *fault;
    struct pages now;

    fault = fail_next("cuMemHostUnregister", 1, UNKNOWN, false);
    kops_close(s->client);
    s->client = NULL;
    assert_int_equal(fault->armed, 0);
    now = registered_pages();
    assert_true(contains(&now, page));
    stop(s);
}

static int open_control_and_load(void **state)
{
    return open_control(state) || load_for_all(state);
}

ALL_TESTS_WITH(open_control_and_load, close_control)

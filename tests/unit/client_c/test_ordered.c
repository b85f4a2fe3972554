/* Ordered calls: a fake daemon and a driver in host memory (tests/standin_cuda) that share a page of timelines. */
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/socket.h>

#include "api/native.h"
#include "driver.h"
#include "scene.h"
#include "session/client.h"

enum { MANY = 2000 };

/* ---- the daemon ---- */

enum death { NEVER, BEFORE_READY, BEFORE_DONE, BEFORE_REPLY, AFTER_REPLY };

static struct {
    sem_t permits; /* with `hold`: one op ends for each */
    atomic_bool hold;
    _Atomic enum death die;          /* once, */
    atomic_uint die_at;              /* at that request */
    _Atomic(const char *) fail_tag;  /* an op with this tag fails; in a sequence, the one at fail_index */
    _Atomic(const char *) fail_code; /* NULL: device_error */
    atomic_int fail_index;
    atomic_uint requests, sequences, ops, released;
    atomic_uint streams[256];
} d;

static void wait_for_word(_Atomic int64_t *word, int64_t value)
{
    while (atomic_load(word) - value < 0)
        sched_yield();
}

/* One stream at a time, in order: what a test needs of a daemon. False: it dies. */
static bool work(struct fake_connection *c, const struct fake_request *r)
{
    const msgpack_object *ready = fake_param(&r->params, "ready"), *done = fake_param(&r->params, "done"),
                         *index = fake_param(&r->params, "stream"), *ops = fake_param(&r->params, "ops");
    uint64_t s = index ? index->via.u64 : 0;
    bool failing = d.fail_tag && (ops || !strcmp(r->tag, d.fail_tag));
    enum death death = atomic_fetch_add(&d.requests, 1) + 1 == d.die_at ? d.die : NEVER;

    atomic_fetch_add(&d.ops, ops ? ops->via.array.size : 1);
    atomic_fetch_add(&d.sequences, ops != NULL);
    atomic_fetch_add(&d.streams[s], 1);
    if (death == BEFORE_READY)
        return false;
    if (ready)
        wait_for_word(&c->words[s], (int64_t)ready->via.u64);
    if (d.hold)
        sem_wait(&d.permits);
    if (death == BEFORE_DONE)
        return false;
    if (done)
        atomic_store(&c->words[256 + s], (int64_t)done->via.u64);
    if (death == BEFORE_REPLY)
        return false;
    if (failing) {
        char details[32] = "{}";

        if (ops)
            snprintf(details, sizeof(details), "{op_index: %d}", d.fail_index);
        fake_reply_error(c, r->msgid, d.fail_code ? d.fail_code : "device_error", "it broke", details);
    } else {
        fake_reply_run(c, r->msgid, "simple");
    }
    return death != AFTER_REPLY;
}

static void serve(struct fake_connection *c, void *unused)
{
    struct fake_request r;
    bool alive = true;

    while (alive && fake_next(c, &r)) {
        if (!strcmp(r.method, "release"))
            d.released = d.ops + 1;
        if (fake_is_work(r.method))
            alive = work(c, &r);
        else
            fake_answer(c, &r);
    }
}

/* ---- a client of it ---- */

static struct scene *start(enum kops_transport transport, int64_t timeout_ms)
{
    memset(&d, 0, sizeof(d));
    sem_init(&d.permits, 0, 0);
    return scene_serve(serve, NULL, &(struct kops_connect_options){.transport = transport, .timeout_ms = timeout_ms});
}

static enum kops_code enqueue(struct scene *s, const char *tag)
{
    return kops_enqueue(s->client, tagged_run(&s->t, tag), stream, &s->error);
}

/* Waits for what is on `stream`. */
static void expect_end(struct scene *s, enum kops_code code)
{
    if (kops_synchronize(s->client, stream, 0, &s->error) != code)
        fail_msg("not %s: %s", kops_code_name(code), s->error.message);
}

static int begin_by_ring(void **state)
{
    *state = start(KOPS_TRANSPORT_SHM, 0);
    return 0;
}

static int begin_by_socket(void **state)
{
    *state = start(KOPS_TRANSPORT_SOCKET, 0);
    return 0;
}

/* The stream has ended, too. */
static int end(void **state)
{
    finish(stream);
    scene_stop(*state);
    return 0;
}

/* ---- tests ---- */

#define SOCKET(name) TEST_OF(struct scene *s, name, begin_by_socket, end)

SOCKET(an_op_has_its_place_on_the_stream)
{
    d.hold = true;
    close_gate();
    atomic_store(&words[1], 0);
    assert_ok(enqueue(s, "x"));
    assert_int_equal(cuStreamWriteValue64(stream, words_address + 8, 7, 0), 0);
    while (!d.requests) /* it was sent, though the stream stands still */
        sched_yield();
    sem_post(&d.permits); /* would let it run if it did not wait for the stream */
    assert_int_not_equal(cuStreamQuery(stream), 0);
    assert_int_equal(kops_synchronize(s->client, stream, 20, &s->error), KOPS_ERR_TIMEOUT);
    assert_int_equal(atomic_load(&words[1]), 0);
    open_gate();
    expect_end(s, KOPS_OK);
    finish(stream);
    assert_int_equal(atomic_load(&words[1]), 7);

    /* And what comes behind it waits for it. */
    assert_ok(enqueue(s, "x"));
    assert_int_equal(cuStreamWriteValue64(stream, words_address + 8, 8, 0), 0);
    while (d.requests < 2)
        sched_yield();
    assert_int_not_equal(cuStreamQuery(stream), 0);
    assert_int_equal(atomic_load(&words[1]), 7);
    sem_post(&d.permits);
    finish(stream);
    assert_int_equal(atomic_load(&words[1]), 8);
}

TEST(many_wait_for_room_and_not_for_each_other)
{
    static const enum kops_transport transports[] = {KOPS_TRANSPORT_SOCKET, KOPS_TRANSPORT_SHM};

    for (int k = 0; k < 2; k++) {
        struct scene *s;

        fake_inflight = 16;
        s = start(transports[k], 0);
        for (int i = 0; i < MANY; i++)
            assert_ok(enqueue(s, "x"));
        assert_int_equal(native_enqueued(s->client), MANY);
        assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
        assert_true(native_completed(s->client, MANY));
        assert_int_equal(d.requests, MANY);
        finish(stream);
        scene_stop(s);
    }
}

#define RING(name) TEST_OF(struct scene *s, name, begin_by_ring, end)

RING(an_error_comes_with_the_next_call)
{
    int64_t number = 0;

    d.fail_tag = "bad";
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
    assert_int_equal(d.requests, 4);
}

/* The op's name is one of hello's. */
static const struct kops_request *gemm(struct tagged *t)
{
    tagged_run(t, "x");
    t->request.op = "gemm";
    return &t->request;
}

static void enqueue_batch(struct scene *s, int n)
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
    assert_int_equal(cuStreamWriteValue64(stream, words_address + 8, 9, 0), 0);
    assert_false(native_completed(s->client, 1));
    open_gate();
    finish(stream);
    assert_int_equal(atomic_load(&words[1]), 9);
    assert_int_equal(d.ops, 200);
    assert_true(d.sequences < 10);
    assert_int_equal(d.sequences, d.requests);
    expect_end(s, KOPS_OK);

    /* An error names the op within. */
    d.fail_tag = "any";
    d.fail_index = 2;
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
    assert_ok(kops_kernel_enqueue(kernel, args, 2, NULL, stream, &s->error));
    expect_end(s, KOPS_OK);
    assert_int_equal(kops_kernel_enqueue(kernel, args, 2, &on_stream, stream, &s->error), KOPS_ERR_BAD_ARGUMENT);

    d.fail_tag = "any";
    d.fail_index = 1;
    assert_ok(kops_batch_begin(s->client, stream, &s->error));
    for (int i = 0; i < 2; i++) {
        assert_ok(kops_enqueue(s->client, gemm(&s->t), stream, &s->error));
        assert_ok(kops_kernel_enqueue(kernel, args, 2, NULL, stream, &s->error));
    }
    kops_kernel_free(kernel);
    assert_int_equal(d.released, 0);
    assert_ok(kops_batch_end(s->client, stream, &s->error));
    expect_end(s, KOPS_ERR_DEVICE_ERROR);
    assert_non_null(strstr(s->error.message, "call 3 (mine)"));
    assert_int_equal(d.ops, 5);
    assert_int_equal(d.sequences, 1);
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
    assert_int_equal(d.released, 0);
    expect_end(s, KOPS_OK);
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(d.released, 2); /* behind one op */
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
    assert_int_equal(d.released, 0);
}

SOCKET(a_captured_stream_is_refused)
{
    CUgraph graph = NULL;

    assert_int_equal(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
    assert_int_equal(enqueue(s, "x"), KOPS_ERR_CAPTURING);
    assert_int_equal(kops_batch_begin(s->client, stream, &s->error), KOPS_ERR_CAPTURING);
    assert_int_equal(cuStreamEndCapture(stream, &graph), 0);
    assert_ok(enqueue(s, "x"));
    expect_end(s, KOPS_OK);
    assert_int_equal(d.requests, 1);
}

TEST(a_dead_daemon_releases_the_streams)
{
    for (int k = 0; k < 6; k++) {
        struct scene *s = start(k % 2 ? KOPS_TRANSPORT_SOCKET : KOPS_TRANSPORT_SHM, 0);
        enum kops_code r = KOPS_OK;
        int64_t number = 0;

        d.die_at = 10;
        d.die = (enum death[]){BEFORE_READY, BEFORE_DONE, BEFORE_REPLY}[k / 2];
        for (int i = 0; i < 50 && !r; i++)
            r = enqueue(s, "x");
        assert_int_equal(cuCtxSynchronize(), 0);
        if (!r)
            r = kops_synchronize(s->client, stream, 0, &s->error);
        assert_int_equal(r, KOPS_ERR_CONNECTION_LOST);
        /* Of the ops that were under way, the first one is named. */
        assert_true(kops_error_number(&s->error, "call", &number));
        assert_int_equal(number, 10);
        assert_ok(enqueue(s, "x")); /* connects anew, with a new page */
        expect_end(s, KOPS_OK);
        assert_int_equal(cuCtxSynchronize(), 0);
        scene_stop(s);
    }
}

/* An op takes the device with it: that is told once, nothing is repeated, and what comes goes to the next daemon. */
TEST(a_lost_device_is_told_once)
{
    for (int k = 0; k < 2; k++) {
        struct scene *s = start(k ? KOPS_TRANSPORT_SOCKET : KOPS_TRANSPORT_SHM, 0);

        d.fail_tag = "bad";
        d.fail_code = "device_lost";
        d.die_at = 2;
        d.die = AFTER_REPLY;
        assert_ok(enqueue(s, "good"));
        assert_ok(enqueue(s, "bad"));
        expect_end(s, KOPS_ERR_DEVICE_LOST);
        assert_non_null(strstr(s->error.message, "call 2"));
        finish(stream);
        assert_ok(enqueue(s, "good"));
        expect_end(s, KOPS_OK);
        assert_int_equal(cuCtxSynchronize(), 0);
        assert_int_equal(d.requests, 3);
        scene_stop(s);
    }
}

/* Also in the middle of a batch, part of which was sent. */
SOCKET(a_batch_that_cannot_end_well_ends)
{
    enum kops_code r = KOPS_OK;

    d.die_at = 2;
    d.die = BEFORE_DONE;
    assert_ok(kops_batch_begin(s->client, stream, &s->error));
    for (int i = 0; i < 30 && !r; i++)
        r = kops_enqueue(s->client, gemm(&s->t), stream, &s->error);
    (void)kops_batch_end(s->client, stream, &s->error);
    assert_int_equal(cuCtxSynchronize(), 0);
    (void)kops_synchronize(s->client, stream, 0, &s->error);
    expect_end(s, KOPS_OK);
    assert_ok(enqueue(s, "x"));
    expect_end(s, KOPS_OK);
}

TEST(closing_releases_what_still_waits)
{
    struct scene *s = start(KOPS_TRANSPORT_SHM, 30);

    d.hold = true;
    assert_ok(enqueue(s, "x"));
    assert_ok(enqueue(s, "x"));
    kops_close(s->client);
    assert_int_equal(cuCtxSynchronize(), 0);
    sem_post(&d.permits);
    sem_post(&d.permits);
    s->client = NULL;
    scene_stop(s);
}

RING(streams_take_turns)
{
    unsigned used = 0;
    CUstream other;

    for (int i = 0; i < 600; i++) {
        assert_int_equal(cuStreamCreate(&other, 1), 0);
        assert_ok(kops_enqueue(s->client, tagged_run(&s->t, "x"), other, &s->error));
        if (i % 3 == 0)
            assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
        finish(other);
        assert_int_equal(cuStreamDestroy(other), 0);
    }
    assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
    for (int i = 0; i < 256; i++)
        used += d.streams[i] > 0;
    assert_int_equal(used, 256);
    assert_int_equal(kops_enqueue(s->client, tagged_run(&s->t, "x"), KOPS_ALL_STREAMS, &s->error),
                     KOPS_ERR_BAD_ARGUMENT);
}

static void *without_context(void *argument)
{
    struct scene *s = argument;
    struct tagged t;

    return kops_enqueue(s->client, tagged_run(&t, "x"), stream, NULL) == KOPS_ERR_NO_CUDA ? NULL : "it was enqueued";
}

static int in_a_child(void *scene)
{
    struct scene *s = scene;

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
    struct scene *s = argument;
    struct kops_error error;
    enum kops_code r = KOPS_OK;
    struct tagged t;
    CUstream own;

    if (cuCtxSetCurrent(context) || cuStreamCreate(&own, 1))
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
    return r || cuStreamSynchronize(own) || cuStreamDestroy(own) ? "it failed" : NULL;
}

RING(threads_enqueue_at_once)
{
    in_threads(4, enqueue_often, s, 0);
    assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
    assert_int_equal(d.ops, 4 * 300);
    assert_int_equal(native_enqueued(s->client), 4 * 300);
    assert_true(native_completed(s->client, 4 * 300));
}

/* ---- pages of timelines ---- */

enum { UNKNOWN = 999 };

/* Shared memory that a device knows: pages of timelines, also of earlier tests. */
static unsigned registered_pages(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned flags, n = 0;
    char line[512];
    void *page;

    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps))
        n += strstr(line, "/memfd:") && sscanf(line, "%p-", &page) == 1 && cuMemHostGetFlags(&flags, page) == 0;
    fclose(maps);
    return n;
}

static void *close_client(void *client)
{
    kops_close(client);
    return NULL;
}

/* By a thread without a context, too. One that the driver keeps keeps its addresses. */
TEST(a_page_is_given_back)
{
    for (unsigned kept = 0; kept < 2; kept++) {
        const unsigned before = registered_pages();
        struct scene *s = start(KOPS_TRANSPORT_SHM, 0);
        const struct standin_fault *fault = NULL;

        assert_ok(enqueue(s, "x"));
        assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
        assert_int_equal(cuCtxSynchronize(), 0);
        assert_int_equal(registered_pages(), before + 1);
        if (kept)
            fault = fail_next("cuMemHostUnregister", 1, UNKNOWN, false);
        in_threads(1, close_client, s->client, 0);
        s->client = NULL;
        assert_true(!fault || !fault->armed);
        assert_int_equal(registered_pages(), before + kept);
        scene_stop(s);
    }
}

static int open_control_and_load(void **state)
{
    return open_control(state) || load(state);
}

ALL_TESTS_WITH(open_control_and_load, close_control)

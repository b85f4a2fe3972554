/* Ordered calls: a fake daemon and a driver in host memory (tests/standin_cuda) that share a page of timelines. */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "native.h"
#include "test.h"

/* ---- the driver ---- */

static struct {
    int (*init)(unsigned);
    int (*device_get)(int *, int);
    int (*retain)(void **, int);
    int (*set)(void *);
    int (*synchronize)(void);
    int (*stream_create)(void **, unsigned);
    int (*stream_destroy)(void *);
    int (*stream_synchronize)(void *);
    int (*stream_query)(void *);
    int (*host_register)(void *, size_t, unsigned);
    int (*device_pointer)(uint64_t *, void *, unsigned);
    int (*wait)(void *, uint64_t, uint64_t, unsigned);
    int (*write)(void *, uint64_t, uint64_t, unsigned);
    int (*begin_capture)(void *, int);
    int (*end_capture)(void *, void **);
} cu;

static void *context, *stream;

/* Words of the test's own that streams can wait for and write. */
static _Atomic uint64_t *words;
static uint64_t words_address;

static void load(void)
{
    static const struct {
        const char *name;
        void *into;
    } functions[] = {{"cuInit", &cu.init},
                     {"cuDeviceGet", &cu.device_get},
                     {"cuDevicePrimaryCtxRetain", &cu.retain},
                     {"cuCtxSetCurrent", &cu.set},
                     {"cuCtxSynchronize", &cu.synchronize},
                     {"cuStreamCreate", &cu.stream_create},
                     {"cuStreamDestroy_v2", &cu.stream_destroy},
                     {"cuStreamSynchronize", &cu.stream_synchronize},
                     {"cuStreamQuery", &cu.stream_query},
                     {"cuMemHostRegister_v2", &cu.host_register},
                     {"cuMemHostGetDevicePointer_v2", &cu.device_pointer},
                     {"cuStreamWaitValue64_v2", &cu.wait},
                     {"cuStreamWriteValue64_v2", &cu.write},
                     {"cuStreamBeginCapture_v2", &cu.begin_capture},
                     {"cuStreamEndCapture", &cu.end_capture}};
    void *library = dlopen(getenv("KOPS_CUDA_DRIVER"), RTLD_NOW);
    int device;

    for (size_t i = 0; library && i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *symbol = dlsym(library, functions[i].name);

        memcpy(functions[i].into, &symbol, sizeof(symbol));
    }
    if (!library || cu.init(0) || cu.device_get(&device, 0) || cu.retain(&context, device) || cu.set(context) ||
        cu.stream_create(&stream, 1))
        fail_msg("no driver: %s", dlerror());
    words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(words != MAP_FAILED && !cu.host_register((void *)words, 4096, 2) &&
                !cu.device_pointer(&words_address, (void *)words, 0));
}

/* Nothing on the stream goes on before open_gate(). */
static void close_gate(void)
{
    atomic_store(&words[0], 0);
    assert_int_equal(cu.wait(stream, words_address, 1, 0), 0);
}

static void open_gate(void)
{
    atomic_store(&words[0], 1);
}

/* ---- the daemon ---- */

enum { MANY = 2000 };

enum death { NEVER, BEFORE_READY, BEFORE_DONE, BEFORE_REPLY };

struct daemon {
    sem_t permits; /* with `hold`: one op ends for each */
    bool hold;
    enum death die;       /* once, */
    unsigned die_at;      /* at that request */
    const char *fail_tag; /* an op with this tag fails; in a sequence, the one at fail_index */
    int fail_index;
    atomic_uint requests, sequences, ops, started_early, released;
    atomic_uint streams[256];
};

static void wait_for_word(_Atomic int64_t *word, int64_t value)
{
    while (atomic_load(word) - value < 0)
        sched_yield();
}

static const msgpack_object *tag_of(const struct fake_request *r)
{
    const msgpack_object *attrs = fake_param(&r->params, "attrs");

    return attrs ? fake_param(attrs, "tag") : NULL;
}

static void reply_failure(struct fake_connection *c, uint32_t msgid, int op_index)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msgpack_pack_array(&p, 4);
    msgpack_pack_int(&p, 1);
    msgpack_pack_uint32(&p, msgid);
    msgpack_pack_map(&p, 3);
    msgpack_pack_str_with_body(&p, "code", 4);
    msgpack_pack_str_with_body(&p, "device_error", 12);
    msgpack_pack_str_with_body(&p, "message", 7);
    msgpack_pack_str_with_body(&p, "it broke", 8);
    msgpack_pack_str_with_body(&p, "detail", 6);
    msgpack_pack_map(&p, op_index >= 0);
    if (op_index >= 0) {
        msgpack_pack_str_with_body(&p, "op_index", 8);
        msgpack_pack_int(&p, op_index);
    }
    msgpack_pack_nil(&p);
    fake_send(c, b.data, b.size, NULL, 0);
    msgpack_sbuffer_destroy(&b);
}

/* One stream at a time, in order: what a test needs of a daemon. False: it dies. */
static bool work(struct fake_connection *c, struct daemon *d, const struct fake_request *r)
{
    const msgpack_object *ready = fake_param(&r->params, "ready"), *done = fake_param(&r->params, "done"),
                         *index = fake_param(&r->params, "stream"), *ops = fake_param(&r->params, "ops");
    const msgpack_object *tag = tag_of(r);
    uint64_t s = index ? index->via.u64 : 0;
    bool failing = d->fail_tag && (ops || fake_is(tag, d->fail_tag));
    enum death death = atomic_fetch_add(&d->requests, 1) + 1 == d->die_at ? d->die : NEVER;

    atomic_fetch_add(&d->ops, ops ? ops->via.array.size : 1);
    atomic_fetch_add(&d->sequences, ops != NULL);
    atomic_fetch_add(&d->streams[s], 1);
    if (death == BEFORE_READY)
        return false;
    if (ready)
        wait_for_word(&c->words[s], (int64_t)ready->via.u64);
    if (d->hold)
        sem_wait(&d->permits);
    if (death == BEFORE_DONE)
        return false;
    if (done)
        atomic_store(&c->words[256 + s], (int64_t)done->via.u64);
    if (death == BEFORE_REPLY)
        return false;
    if (failing)
        reply_failure(c, r->msgid, ops ? d->fail_index : -1);
    else
        fake_reply_run(c, r->msgid, "simple");
    return true;
}

static void serve(struct fake_connection *c, void *context_)
{
    struct daemon *d = context_;
    struct fake_request r;
    bool alive = true;

    while (alive && fake_next(c, &r)) {
        if (!strcmp(r.method, "release"))
            atomic_store(&d->released, atomic_load(&d->ops) + 1);
        if (!strcmp(r.method, "run") || !strcmp(r.method, "sequence") || !strcmp(r.method, "run_program"))
            alive = work(c, d, &r);
        else
            fake_answer(c, &r);
    }
}

static const char *const features[] = {"memfd", "shm", "ordered", "sequence", "program", "priority", NULL};

struct setting {
    struct daemon d;
    struct fake *f;
    kops_client *client;
    struct tagged t;
    struct kops_error error;
};

static struct setting *start(enum kops_transport transport, int64_t timeout_ms)
{
    struct setting *s = calloc(1, sizeof(*s));
    struct kops_connect_options options = {.transport = transport, .timeout_ms = timeout_ms};

    sem_init(&s->d.permits, 0, 0);
    fake_set_features(features);
    s->f = fake_start(serve, &s->d);
    options.socket = fake_path(s->f);
    assert_ok(kops_connect(&options, &s->client, &s->error));
    return s;
}

static void stop(struct setting *s)
{
    kops_close(s->client);
    fake_stop(s->f);
    sem_destroy(&s->d.permits);
    free(s);
    fake_set_features(NULL);
}

static enum kops_code enqueue(struct setting *s, const char *tag)
{
    return kops_enqueue(s->client, tagged_run(&s->t, tag), stream, &s->error);
}

/* ---- tests ---- */

static void an_op_has_its_place_on_the_stream(void **state)
{
    struct setting *s = start(KOPS_TRANSPORT_SOCKET, 0);

    (void)state;
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
    assert_ok(kops_synchronize(s->client, stream, 0, &s->error));
    assert_int_equal(cu.stream_synchronize(stream), 0);
    assert_int_equal(atomic_load(&words[1]), 7);

    /* And what comes behind it waits for it. */
    assert_ok(enqueue(s, "x"));
    assert_int_equal(cu.write(stream, words_address + 8, 8, 0), 0);
    while (atomic_load(&s->d.requests) < 2)
        sched_yield();
    assert_int_not_equal(cu.stream_query(stream), 0);
    assert_int_equal(atomic_load(&words[1]), 7);
    sem_post(&s->d.permits);
    assert_int_equal(cu.stream_synchronize(stream), 0);
    assert_int_equal(atomic_load(&words[1]), 8);
    stop(s);
}

static void many_wait_for_room_and_not_for_each_other(void **state)
{
    (void)state;
    fake_set_inflight(16);
    for (int k = 1; k <= 2; k++) {
        struct setting *s = start(k == 1 ? KOPS_TRANSPORT_SOCKET : KOPS_TRANSPORT_SHM, 0);

        for (int i = 0; i < MANY; i++)
            assert_ok(enqueue(s, "x"));
        assert_int_equal(native_enqueued(s->client), MANY);
        assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
        assert_true(native_completed(s->client, MANY));
        assert_int_equal(atomic_load(&s->d.requests), MANY);
        assert_int_equal(cu.stream_synchronize(stream), 0);
        stop(s);
    }
    fake_set_inflight(64);
}

static void an_error_comes_with_the_next_call(void **state)
{
    struct setting *s = start(KOPS_TRANSPORT_SHM, 0);
    int64_t number = 0;

    (void)state;
    s->d.fail_tag = "bad";
    assert_ok(enqueue(s, "good"));
    assert_ok(enqueue(s, "bad"));
    assert_int_equal(kops_synchronize(s->client, stream, 0, &s->error), KOPS_ERR_DEVICE_ERROR);
    assert_true(kops_error_number(&s->error, "call", &number));
    assert_int_equal(number, 2);
    assert_non_null(strstr(s->error.message, "it broke"));
    assert_ok(kops_synchronize(s->client, stream, 0, &s->error)); /* told once */
    assert_int_equal(cu.stream_synchronize(stream), 0);

    assert_ok(enqueue(s, "bad"));
    while (!native_completed(s->client, 3))
        sched_yield();
    assert_int_equal(enqueue(s, "good"), KOPS_ERR_DEVICE_ERROR);
    assert_ok(enqueue(s, "good"));
    assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
    assert_int_equal(atomic_load(&s->d.requests), 4);
    stop(s);
}

/* The op's name is one of hello's. */
static const struct kops_request *gemm(struct tagged *t)
{
    tagged_run(t, "x");
    t->request.op = "gemm";
    return &t->request;
}

static void a_batch_is_gathered_and_waited_for_once(void **state)
{
    struct setting *s = start(KOPS_TRANSPORT_SHM, 0);
    int64_t number = 0;

    (void)state;
    close_gate();
    assert_ok(kops_batch_begin(s->client, stream, &s->error));
    assert_int_equal(kops_batch_begin(s->client, stream, &s->error), KOPS_ERR_BAD_ARGUMENT);
    for (int i = 0; i < 200; i++)
        assert_ok(kops_enqueue(s->client, gemm(&s->t), stream, &s->error));
    assert_ok(kops_batch_end(s->client, stream, &s->error));
    atomic_store(&words[1], 0);
    assert_int_equal(cu.write(stream, words_address + 8, 9, 0), 0);
    assert_false(native_completed(s->client, 1));
    open_gate();
    assert_int_equal(cu.stream_synchronize(stream), 0);
    assert_int_equal(atomic_load(&words[1]), 9);
    assert_int_equal(atomic_load(&s->d.ops), 200);
    assert_true(atomic_load(&s->d.sequences) < 10);
    assert_int_equal(atomic_load(&s->d.sequences), atomic_load(&s->d.requests));
    assert_ok(kops_synchronize(s->client, stream, 0, &s->error));
    assert_int_equal(kops_batch_end(s->client, stream, &s->error), KOPS_ERR_BAD_ARGUMENT);

    /* An error names the op within. */
    s->d.fail_tag = "any";
    s->d.fail_index = 2;
    assert_ok(kops_batch_begin(s->client, stream, &s->error));
    for (int i = 0; i < 4; i++)
        assert_ok(kops_enqueue(s->client, gemm(&s->t), stream, &s->error));
    assert_ok(kops_batch_end(s->client, stream, &s->error));
    assert_int_equal(kops_synchronize(s->client, stream, 0, &s->error), KOPS_ERR_DEVICE_ERROR);
    assert_true(kops_error_number(&s->error, "call", &number));
    assert_int_equal(number, 203);
    assert_non_null(strstr(s->error.message, "gemm"));
    assert_int_equal(cu.stream_synchronize(stream), 0);
    stop(s);
}

/* Synchronising inside a batch sends what is gathered; a release does not overtake what uses the buffer. */
static void gathered_ops_keep_their_order(void **state)
{
    struct setting *s = start(KOPS_TRANSPORT_SHM, 0);
    kops_buffer *buffer;

    (void)state;
    assert_ok(kops_buffer_alloc_shared(s->client, 64, &buffer, &s->error));
    assert_ok(kops_batch_begin(s->client, stream, &s->error));
    assert_ok(kops_enqueue(s->client, gemm(&s->t), stream, &s->error));
    kops_buffer_release(buffer);
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(atomic_load(&s->d.released), 0);
    assert_ok(kops_synchronize(s->client, stream, 0, &s->error));
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(atomic_load(&s->d.released), 2); /* behind one op */
    assert_ok(kops_batch_end(s->client, stream, &s->error));
    assert_int_equal(cu.stream_synchronize(stream), 0);
    stop(s);
}

static void a_captured_stream_is_refused(void **state)
{
    struct setting *s = start(KOPS_TRANSPORT_SOCKET, 0);
    void *graph = NULL;

    (void)state;
    if (!cu.begin_capture || cu.begin_capture(stream, 1))
        skip();
    assert_int_equal(enqueue(s, "x"), KOPS_ERR_CAPTURING);
    assert_int_equal(kops_batch_begin(s->client, stream, &s->error), KOPS_ERR_CAPTURING);
    assert_int_equal(cu.end_capture(stream, &graph), 0);
    assert_ok(enqueue(s, "x"));
    assert_ok(kops_synchronize(s->client, stream, 0, &s->error));
    assert_int_equal(atomic_load(&s->d.requests), 1);
    stop(s);
}

static void a_dead_daemon_releases_the_streams(void **state)
{
    (void)state;
    for (int k = 0; k < 6; k++) {
        struct setting *s = start(k % 2 ? KOPS_TRANSPORT_SOCKET : KOPS_TRANSPORT_SHM, 0);
        enum kops_code r = KOPS_OK;

        s->d.die_at = 10;
        s->d.die = (enum death[]){BEFORE_READY, BEFORE_DONE, BEFORE_REPLY}[k / 2];
        for (int i = 0; i < 50 && !r; i++)
            r = enqueue(s, "x");
        assert_int_equal(cu.synchronize(), 0);
        if (!r)
            r = kops_synchronize(s->client, stream, 0, &s->error);
        assert_int_equal(r, KOPS_ERR_CONNECTION_LOST);
        assert_non_null(strstr(s->error.message, "call "));
        assert_ok(enqueue(s, "x")); /* connects anew, with a new page */
        assert_ok(kops_synchronize(s->client, stream, 0, &s->error));
        assert_int_equal(cu.synchronize(), 0);
        stop(s);
    }
}

/* Also in the middle of a batch, part of which was sent. */
static void a_batch_that_cannot_end_well_ends(void **state)
{
    struct setting *s = start(KOPS_TRANSPORT_SOCKET, 0);
    enum kops_code r = KOPS_OK;

    (void)state;
    s->d.die_at = 2;
    s->d.die = BEFORE_DONE;
    assert_ok(kops_batch_begin(s->client, stream, &s->error));
    for (int i = 0; i < 30 && !r; i++)
        r = kops_enqueue(s->client, gemm(&s->t), stream, &s->error);
    (void)kops_batch_end(s->client, stream, &s->error);
    assert_int_equal(cu.synchronize(), 0);
    (void)kops_synchronize(s->client, stream, 0, &s->error);
    assert_ok(kops_synchronize(s->client, stream, 0, &s->error));
    assert_ok(enqueue(s, "x"));
    assert_ok(kops_synchronize(s->client, stream, 0, &s->error));
    stop(s);
}

static void closing_releases_what_still_waits(void **state)
{
    struct setting *s = start(KOPS_TRANSPORT_SHM, 30);

    (void)state;
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

static void streams_take_turns(void **state)
{
    struct setting *s = start(KOPS_TRANSPORT_SHM, 0);
    unsigned used = 0;
    void *other;

    (void)state;
    for (int i = 0; i < 600; i++) {
        assert_int_equal(cu.stream_create(&other, 1), 0);
        assert_ok(kops_enqueue(s->client, tagged_run(&s->t, "x"), other, &s->error));
        if (i % 3 == 0)
            assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
        assert_int_equal(cu.stream_synchronize(other), 0);
        assert_int_equal(cu.stream_destroy(other), 0);
    }
    assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
    for (int i = 0; i < 256; i++)
        used += atomic_load(&s->d.streams[i]) > 0;
    assert_int_equal(used, 256);
    assert_int_equal(kops_enqueue(s->client, tagged_run(&s->t, "x"), KOPS_ALL_STREAMS, &s->error),
                     KOPS_ERR_BAD_ARGUMENT);
    stop(s);
}

static void *without_context(void *argument)
{
    struct setting *s = argument;
    struct tagged t;

    return kops_enqueue(s->client, tagged_run(&t, "x"), stream, NULL) == KOPS_ERR_NO_CUDA ? NULL : s;
}

static void what_cannot_be_enqueued(void **state)
{
    struct setting *s = start(KOPS_TRANSPORT_SHM, 0);
    pthread_t thread;
    void *failed;
    int status;
    pid_t pid;

    (void)state;
    assert_ok(enqueue(s, "x"));
    assert_ok(kops_synchronize(s->client, stream, 0, &s->error));
    assert_int_equal(pthread_create(&thread, NULL, without_context, s), 0);
    pthread_join(thread, &failed);
    assert_null(failed);
    tagged_run(&s->t, "x");
    s->t.request.options.stream = 3;
    assert_int_equal(kops_enqueue(s->client, &s->t.request, stream, &s->error), KOPS_ERR_BAD_ARGUMENT);
    pid = fork();
    if (pid == 0) {
        enum kops_code r = enqueue(s, "x");

        _exit(r == KOPS_ERR_NO_CUDA && !kops_ping(s->client, 0, &s->error) ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_ok(enqueue(s, "x"));
    assert_ok(kops_synchronize(s->client, stream, 0, &s->error));
    stop(s);
}

static int set_up(void **state)
{
    (void)state;
    load();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_op_has_its_place_on_the_stream),
        cmocka_unit_test(many_wait_for_room_and_not_for_each_other),
        cmocka_unit_test(an_error_comes_with_the_next_call),
        cmocka_unit_test(a_batch_is_gathered_and_waited_for_once),
        cmocka_unit_test(gathered_ops_keep_their_order),
        cmocka_unit_test(a_captured_stream_is_refused),
        cmocka_unit_test(a_dead_daemon_releases_the_streams),
        cmocka_unit_test(a_batch_that_cannot_end_well_ends),
        cmocka_unit_test(closing_releases_what_still_waits),
        cmocka_unit_test(streams_take_turns),
        cmocka_unit_test(what_cannot_be_enqueued),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}

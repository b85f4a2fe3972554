/* Built-in ops in the caller's own context and its graphs, by a real daemon's kernels, with a driver in host memory
 * (tests/standin_cuda). Needs KOPSD and KOPS_CUDA_DRIVER, their paths, in the environment. */
#include "driver.h"
#include "real_daemon.h"

enum { SIDE = 4, N = SIDE * SIDE, BYTES = N * sizeof(float) };

/* Memory of the device as a client knows it. */
struct memory {
    kops_buffer *in, *out;
    struct kops_tensor a, b;
};

struct two_clients {
    struct real s;
    float *from, *to; /* the stand-in's device memory is the host's */
    struct memory m;

    /* Another client, whose calls run here, on the same memory. */
    kops_client *here;
    struct memory h;
};

static void registered(struct two_clients *x, kops_client *client, struct memory *ret)
{
    assert_ok(kops_buffer_register_cuda(client, (uintptr_t)x->from, KOPS_ACCESS_RW, &ret->in, &x->s.error));
    assert_ok(kops_buffer_register_cuda(client, (uintptr_t)x->to, KOPS_ACCESS_RW, &ret->out, &x->s.error));
    ret->a = kops_vector(ret->in, KOPS_F32, N);
    ret->b = kops_vector(ret->out, KOPS_F32, N);
}

static void released(struct memory *m)
{
    kops_buffer_release(m->in);
    kops_buffer_release(m->out);
}

static void fill(struct two_clients *x)
{
    for (int i = 0; i < N; i++)
        x->from[i] = (float)i;
    memset(x->to, 0, BYTES);
}

static int begin(void **state)
{
    struct two_clients *x = calloc(1, sizeof(*x));
    struct kops_connect_options options = {.where = KOPS_WHERE_HERE};

    must(x);
    real_init(&x->s, getenv("KOPS_CUDA_DRIVER"));
    options.socket = x->s.socket;
    assert_ok(kops_connect(&options, &x->here, &x->s.error));
    x->from = (float *)allocate(BYTES); /* NOLINT(performance-no-int-to-ptr) */
    x->to = (float *)allocate(BYTES);   /* NOLINT(performance-no-int-to-ptr) */
    fill(x);
    registered(x, x->s.client, &x->m);
    registered(x, x->here, &x->h);
    *state = x;
    return 0;
}

static int end(void **state)
{
    struct two_clients *x = *state;

    released(&x->m);
    released(&x->h);
    kops_close(x->here);
    real_free(&x->s);
    free(x);
    return 0;
}

static struct kops_request square_of(const struct kops_tensor *in, const struct kops_tensor *out, enum kops_where where)
{
    return (struct kops_request){
        .op = "square", .inputs = in, .n_inputs = 1, .outputs = out, .n_outputs = 1, .options = {.where = where}};
}

static void enqueue_square(kops_client *client, const struct kops_tensor *in, const struct kops_tensor *out,
                           enum kops_where where)
{
    const struct kops_request request = square_of(in, out, where);

    assert_ok(kops_enqueue(client, &request, stream, NULL));
}

#define TWO_CLIENTS(name) TEST_OF(struct two_clients *x, name, begin, end)

TWO_CLIENTS(an_op_is_launched_here)
{
    const struct kops_options here = {.where = KOPS_WHERE_HERE}, plain = {.where = KOPS_WHERE_HERE, .no_timing = true};
    struct kops_tensor m = kops_matrix(x->m.in, KOPS_F32, SIDE, SIDE),
                       out = kops_matrix(x->m.out, KOPS_F32, SIDE, SIDE);
    struct kops_gemm_params params = KOPS_GEMM_INIT;
    struct kops_result result;
    struct kops_stats *stats;
    int told = 0;

    assert_ok(kops_square(x->s.client, &x->m.a, &x->m.b, &here, &result, &x->s.error));
    for (int i = 0; i < N; i++)
        assert_true(x->to[i] == (float)(i * i));
    assert_string_equal(result.variant, "vector");
    assert_string_equal(result.timer, "events");
    assert_true(result.gpu_us >= 0 && !strncmp(result.device, "GPU-", 4));
    params.trans_a = true;
    params.alpha = 0.5;
    assert_ok(kops_gemm(x->s.client, &m, &m, &out, &params, &plain, &result, &x->s.error));
    assert_true(x->to[0] == 0.5F * (0 + 16 + 64 + 144) && x->to[1] == 0.5F * (4 * 5 + 8 * 9 + 12 * 13));
    assert_string_equal(result.variant, "tiled");
    assert_true(result.gpu_us != result.gpu_us && result.timer[0] == 0);
    assert_ok(kops_stats_get(x->s.client, NULL, &stats, &x->s.error));
    for (const struct kops_stats_row *const *row = stats->rows; *row; row++)
        told += strcmp((*row)->variant, "here") == 0 && (*row)->count == 1 && (*row)->operations > 0;
    assert_int_equal(told, 2); /* square and gemm */
    kops_stats_free(stats);
}

/* Whether a square by another client, on that memory, ran here: only the daemon tells of all of a call's time. */
static bool runs_here(struct two_clients *x, enum kops_where of_connection, bool on_device, enum kops_where of_call)
{
    const struct kops_connect_options options = {.socket = x->s.socket, .where = of_connection};
    struct kops_request request;
    struct kops_result result;
    kops_client *client;
    struct memory m;

    assert_ok(kops_connect(&options, &client, &x->s.error));
    registered(x, client, &m);
    if (!on_device) {
        released(&m);
        assert_ok(kops_buffer_alloc(client, BYTES, NULL, &m.in, &x->s.error));
        assert_ok(kops_buffer_alloc(client, BYTES, NULL, &m.out, &x->s.error));
        m.a.buffer = m.in;
        m.b.buffer = m.out;
    }
    request = square_of(&m.a, &m.b, of_call);
    assert_ok(kops_run(client, &request, &result, &x->s.error));
    released(&m);
    kops_close(client);
    return result.total_us != result.total_us;
}

TWO_CLIENTS(the_place_is_a_choice_of_the_connection)
{
    static const struct {
        const char *environment;
        enum kops_where of_connection;
        bool on_device;
        enum kops_where of_call;
        bool here;
    } cases[] = {
        {NULL, KOPS_WHERE_DEFAULT, true, KOPS_WHERE_DEFAULT, false},
        {NULL, KOPS_WHERE_HERE, true, KOPS_WHERE_DEFAULT, true},
        {NULL, KOPS_WHERE_HERE, true, KOPS_WHERE_DAEMON, false},
        {NULL, KOPS_WHERE_HERE, false, KOPS_WHERE_DEFAULT, false},
        {NULL, KOPS_WHERE_DAEMON, true, KOPS_WHERE_HERE, true},
        {"here", KOPS_WHERE_DEFAULT, true, KOPS_WHERE_DEFAULT, true},
        {"here", KOPS_WHERE_DAEMON, true, KOPS_WHERE_DEFAULT, false},
        {"auto", KOPS_WHERE_DEFAULT, true, KOPS_WHERE_DEFAULT, false},
    };
    const struct kops_connect_options nowhere = {.socket = x->s.socket, .where = (enum kops_where)7},
                                      unsaid = {.socket = x->s.socket};
    kops_client *client;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (cases[i].environment)
            setenv("KOPS_WHERE", cases[i].environment, 1);
        if (runs_here(x, cases[i].of_connection, cases[i].on_device, cases[i].of_call) != cases[i].here)
            fail_msg("case %zu ran elsewhere", i);
    }
    setenv("KOPS_WHERE", "there", 1);
    assert_int_equal(kops_connect(&unsaid, &client, &x->s.error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(x->s.error.message, "\"there\""));
    unsetenv("KOPS_WHERE");
    assert_int_equal(kops_connect(&nowhere, &client, &x->s.error), KOPS_ERR_BAD_ARGUMENT);
}

/* As a program does whose calls are in a loop: options that are the daemon's alone, tickets, and graphs go where they
 * can. */
TWO_CLIENTS(what_is_the_daemons_alone_goes_there)
{
    struct kops_request request = square_of(&x->h.a, &x->h.b, KOPS_WHERE_DEFAULT);
    struct kops_result result;
    kops_ticket ticket;

    assert_ok(kops_submit(x->here, &request, &ticket, &x->s.error));
    assert_ok(kops_wait(x->here, ticket, KOPS_FOREVER, &result, &x->s.error));
    assert_false(result.total_us != result.total_us);
    assert_ok(kops_enqueue(x->here, &request, stream, &x->s.error));
    finish(stream);
    request.options.repeat = 3;
    assert_ok(kops_run(x->here, &request, &result, &x->s.error));
    assert_false(result.total_us != result.total_us);
    assert_true(x->to[3] == 9);
}

/* The daemon's op is gathered, and not sent before the batch ends. */
TWO_CLIENTS(a_call_in_a_batch_is_the_daemons)
{
    assert_ok(kops_batch_begin(x->here, stream, &x->s.error));
    enqueue_square(x->here, &x->h.a, &x->h.b, KOPS_WHERE_DAEMON);
    enqueue_square(x->here, &x->h.b, &x->h.a, KOPS_WHERE_DEFAULT);
    assert_ok(kops_batch_end(x->here, stream, &x->s.error));
    finish(stream);
    assert_true(x->to[2] == 4 && x->from[2] == 16);
    assert_int_equal(launches_here(x->here), 0);
    enqueue_square(x->here, &x->h.b, &x->h.a, KOPS_WHERE_DEFAULT); /* after the batch */
    finish(stream);
    assert_int_equal(launches_here(x->here), 1);
}

TWO_CLIENTS(a_call_here_keeps_a_batch_s_order)
{
    kops_client *client = x->s.client;

    assert_ok(kops_batch_begin(client, stream, &x->s.error));
    enqueue_square(client, &x->m.b, &x->m.a, KOPS_WHERE_HERE); /* the batch is empty */
    finish(stream);
    assert_true(x->from[2] == 0);
    fill(x);
    close_gate();
    enqueue_square(client, &x->m.a, &x->m.b, KOPS_WHERE_DEFAULT);
    enqueue_square(client, &x->m.b, &x->m.a, KOPS_WHERE_HERE);
    enqueue_square(client, &x->m.a, &x->m.b, KOPS_WHERE_DEFAULT);
    assert_int_equal(kops_batch_begin(client, stream, &x->s.error), KOPS_ERR_BAD_ARGUMENT); /* it is open still */
    open_gate();
    assert_ok(kops_batch_end(client, stream, &x->s.error));
    finish(stream);
    assert_true(x->from[2] == 16 && x->to[2] == 256);
    assert_int_equal(launches_here(client), 2);
}

/* On the legacy default stream. */
TWO_CLIENTS(a_call_here_that_waits_keeps_a_batch_s_order)
{
    const struct kops_request there = square_of(&x->h.a, &x->h.b, KOPS_WHERE_DAEMON),
                              any = square_of(&x->h.b, &x->h.a, KOPS_WHERE_DEFAULT);

    assert_ok(kops_batch_begin(x->here, NULL, &x->s.error));
    assert_ok(kops_enqueue(x->here, &there, NULL, &x->s.error));
    assert_ok(kops_run(x->here, &any, NULL, &x->s.error));
    assert_true(x->to[2] == 4 && x->from[2] == 16);
    assert_int_equal(launches_here(x->here), 1);
    assert_ok(kops_batch_end(x->here, NULL, &x->s.error));
}

/* A graph runs later than it is captured: the batch has no part in it. */
TWO_CLIENTS(a_call_that_is_captured_leaves_a_batch)
{
    CUgraph graph = NULL;

    assert_ok(kops_batch_begin(x->s.client, stream, &x->s.error));
    assert_int_equal(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
    enqueue_square(x->s.client, &x->m.a, &x->m.b, KOPS_WHERE_DEFAULT);
    enqueue_square(x->s.client, &x->m.a, &x->m.b, KOPS_WHERE_HERE);
    assert_int_equal(cuStreamEndCapture(stream, &graph), 0);
    assert_ok(kops_batch_end(x->s.client, stream, &x->s.error));
    launch_graph(graph, stream);
    assert_true(x->to[2] == 4);
}

TWO_CLIENTS(what_is_wrong_is_said_at_once)
{
    kops_client *client = x->s.client;
    const struct kops_tensor a = x->m.a, b = x->m.b;
    struct kops_request r;
    kops_ticket ticket;

#define REFUSED(change, expected)                                                                                      \
    do {                                                                                                               \
        r = square_of(&x->m.a, &x->m.b, KOPS_WHERE_HERE);                                                              \
        change;                                                                                                        \
        if (kops_run(client, &r, NULL, &x->s.error) != KOPS_ERR_##expected)                                            \
            fail_msg("%s: %s", #change, x->s.error.message);                                                           \
        x->m.a = a;                                                                                                    \
        x->m.b = b;                                                                                                    \
    } while (0)
    REFUSED(r.options.device = "0", BAD_ARGUMENT);
    REFUSED(r.options.repeat = 2, BAD_ARGUMENT);
    REFUSED(r.options.variant = "cublaslt", INVALID_ARGUMENT);
    REFUSED(x->m.b.shape[0] = N - 1, SHAPE_MISMATCH);
    REFUSED(x->m.a.offset = 4, OUT_OF_BOUNDS);
    REFUSED(r.op = "cube", UNKNOWN_OP);
    REFUSED(assert_int_equal(cuCtxSetCurrent(NULL), 0), NO_CUDA);
#undef REFUSED
    assert_int_equal(cuCtxSetCurrent(context), 0);
    r = square_of(&x->m.a, &x->m.b, KOPS_WHERE_HERE);
    assert_int_equal(kops_submit(client, &r, &ticket, &x->s.error), KOPS_ERR_BAD_ARGUMENT);
    assert_true(x->to[1] == 0);
    assert_ok(kops_run(client, &r, NULL, &x->s.error));
}

/* The next daemon gets what this process has, and what the dead one made, contents included; and hears of it where it
 * is gone. */
TWO_CLIENTS(memory_outlives_the_daemon)
{
    kops_client *client = x->s.client;
    const float values[N] = {1, 2, 3};
    struct kops_tensor made = x->m.b;

    assert_ok(kops_buffer_alloc(client, BYTES, NULL, &made.buffer, &x->s.error));
    assert_ok(kops_buffer_write(made.buffer, 0, values, BYTES, &x->s.error));
    for (int round = 0; round < 2; round++) {
        replace(&x->s);
        assert_ok(kops_square(client, &x->m.a, &x->m.b, NULL, NULL, &x->s.error));
        assert_true(x->to[3] == 9);
        assert_ok(kops_square(client, &made, &x->m.b, NULL, NULL, &x->s.error));
        assert_true(x->to[2] == 9);
    }
    assert_int_equal(cuMemFree((uintptr_t)x->from), 0);
    replace(&x->s);
    for (int again = 0; again < 2; again++)
        assert_int_equal(kops_square(client, &x->m.a, &x->m.b, NULL, NULL, &x->s.error), KOPS_ERR_BUFFER_LOST);
    assert_ok(kops_square(client, &made, &x->m.b, NULL, NULL, &x->s.error));
    kops_buffer_release(made.buffer);
}

TWO_CLIENTS(a_graph_outlives_client_and_daemon)
{
    const struct kops_request only_there = square_of(&x->m.a, &x->m.b, KOPS_WHERE_DAEMON);
    CUgraph graph = NULL;
    CUgraphExec ready = NULL;

    assert_int_equal(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
    enqueue_square(x->s.client, &x->m.a, &x->m.b, KOPS_WHERE_DEFAULT);
    assert_int_equal(kops_enqueue(x->s.client, &only_there, stream, &x->s.error), KOPS_ERR_CAPTURING);
    assert_int_equal(cuStreamEndCapture(stream, &graph), 0);
    assert_int_equal(cuGraphInstantiateWithFlags(&ready, graph, 0), 0);
    assert_true(x->to[2] == 0); /* captured, and not run */
    real_kill(&x->s);
    for (int round = 1; round < 3; round++) {
        x->from[2] = (float)round;
        assert_int_equal(cuGraphLaunch(ready, stream), 0);
        finish(stream);
        assert_true(x->to[2] == (float)(round * round) && x->to[3] == 9);
    }
}

ALL_TESTS_WITH(load, NULL)

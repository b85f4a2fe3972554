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

/* Two clients on the same memory; the calls of the second run here. */
static struct real real;
static kops_client *second;
static float *from, *to; /* the stand-in's device memory is the host's */
static struct memory mine, others;

static void registered(kops_client *client, struct memory *ret)
{
    assert_ok(kops_buffer_register_cuda(client, (uintptr_t)from, KOPS_ACCESS_RW, &ret->in, &real.error));
    assert_ok(kops_buffer_register_cuda(client, (uintptr_t)to, KOPS_ACCESS_RW, &ret->out, &real.error));
    ret->a = kops_vector(ret->in, KOPS_F32, N);
    ret->b = kops_vector(ret->out, KOPS_F32, N);
}

static void released(struct memory *m)
{
    kops_buffer_release(m->in);
    kops_buffer_release(m->out);
}

static void fill(void)
{
    for (int i = 0; i < N; i++)
        from[i] = (float)i;
    memset(to, 0, BYTES);
}

static int begin(void **state)
{
    struct kops_connect_options options = {.where = KOPS_WHERE_HERE};

    real_init(&real, getenv("KOPS_CUDA_DRIVER"));
    options.socket = real.socket;
    assert_ok(kops_connect(&options, &second, &real.error));
    from = (float *)allocate(BYTES); /* NOLINT(performance-no-int-to-ptr) */
    to = (float *)allocate(BYTES);   /* NOLINT(performance-no-int-to-ptr) */
    fill();
    registered(real.client, &mine);
    registered(second, &others);
    return 0;
}

static int end(void **state)
{
    released(&mine);
    released(&others);
    kops_close(second);
    real_free(&real);
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

#define TWO_CLIENTS(name) TEST_WITH(name, begin, end)

TWO_CLIENTS(an_op_is_launched_here)
{
    const struct kops_options here = {.where = KOPS_WHERE_HERE}, plain = {.where = KOPS_WHERE_HERE, .no_timing = true};
    struct kops_tensor m = kops_matrix(mine.in, KOPS_F32, SIDE, SIDE),
                       out = kops_matrix(mine.out, KOPS_F32, SIDE, SIDE);
    struct kops_gemm_params params = KOPS_GEMM_INIT;
    struct kops_result result;
    struct kops_stats *stats;
    int told = 0;

    assert_ok(kops_square(real.client, &mine.a, &mine.b, &here, &result, &real.error));
    for (int i = 0; i < N; i++)
        assert_true(to[i] == (float)(i * i));
    assert_string_equal(result.variant, "vector");
    assert_string_equal(result.timer, "events");
    assert_true(result.gpu_us >= 0 && !strncmp(result.device, "GPU-", 4));
    params.trans_a = true;
    params.alpha = 0.5;
    assert_ok(kops_gemm(real.client, &m, &m, &out, &params, &plain, &result, &real.error));
    assert_true(to[0] == 0.5F * (0 + 16 + 64 + 144) && to[1] == 0.5F * (4 * 5 + 8 * 9 + 12 * 13));
    assert_string_equal(result.variant, "tiled");
    assert_true(result.gpu_us != result.gpu_us && result.timer[0] == 0);
    assert_ok(kops_stats_get(real.client, NULL, &stats, &real.error));
    for (const struct kops_stats_row *const *row = stats->rows; *row; row++)
        told += strcmp((*row)->variant, "here") == 0 && (*row)->count == 1 && (*row)->operations > 0;
    assert_int_equal(told, 2); /* square and gemm */
    kops_stats_free(stats);
}

/* Whether a square by another client, on that memory, ran here: only the daemon tells of all of a call's time. */
static bool runs_here(enum kops_where of_connection, bool on_device, enum kops_where of_call)
{
    const struct kops_connect_options options = {.socket = real.socket, .where = of_connection};
    struct kops_request request;
    struct kops_result result;
    kops_client *client;
    struct memory m;

    assert_ok(kops_connect(&options, &client, &real.error));
    registered(client, &m);
    if (!on_device) {
        released(&m);
        assert_ok(kops_buffer_alloc(client, BYTES, NULL, &m.in, &real.error));
        assert_ok(kops_buffer_alloc(client, BYTES, NULL, &m.out, &real.error));
        m.a.buffer = m.in;
        m.b.buffer = m.out;
    }
    request = square_of(&m.a, &m.b, of_call);
    assert_ok(kops_run(client, &request, &result, &real.error));
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
    const struct kops_connect_options nowhere = {.socket = real.socket, .where = (enum kops_where)7},
                                      unsaid = {.socket = real.socket};
    kops_client *client;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (cases[i].environment)
            setenv("KOPS_WHERE", cases[i].environment, 1);
        if (runs_here(cases[i].of_connection, cases[i].on_device, cases[i].of_call) != cases[i].here)
            fail_msg("case %zu ran elsewhere", i);
    }
    setenv("KOPS_WHERE", "there", 1);
    assert_int_equal(kops_connect(&unsaid, &client, &real.error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(real.error.message, "\"there\""));
    unsetenv("KOPS_WHERE");
    assert_int_equal(kops_connect(&nowhere, &client, &real.error), KOPS_ERR_BAD_ARGUMENT);
}

/* As a program does whose calls are in a loop: options that are the daemon's alone, tickets, and graphs go where they
 * can. */
TWO_CLIENTS(what_is_the_daemons_alone_goes_there)
{
    struct kops_request request = square_of(&others.a, &others.b, KOPS_WHERE_DEFAULT);
    struct kops_result result;
    kops_ticket ticket;

    assert_ok(kops_submit(second, &request, &ticket, &real.error));
    assert_ok(kops_wait(second, ticket, KOPS_FOREVER, &result, &real.error));
    assert_false(result.total_us != result.total_us);
    assert_ok(kops_enqueue(second, &request, stream, &real.error));
    finish(stream);
    request.options.repeat = 3;
    assert_ok(kops_run(second, &request, &result, &real.error));
    assert_false(result.total_us != result.total_us);
    assert_true(to[3] == 9);
}

/* The daemon's op is gathered, and not sent before the batch ends. */
TWO_CLIENTS(a_call_in_a_batch_is_the_daemons)
{
    assert_ok(kops_batch_begin(second, stream, &real.error));
    enqueue_square(second, &others.a, &others.b, KOPS_WHERE_DAEMON);
    enqueue_square(second, &others.b, &others.a, KOPS_WHERE_DEFAULT);
    assert_ok(kops_batch_end(second, stream, &real.error));
    finish(stream);
    assert_true(to[2] == 4 && from[2] == 16);
    assert_int_equal(launches_here(second), 0);
    enqueue_square(second, &others.b, &others.a, KOPS_WHERE_DEFAULT); /* after the batch */
    finish(stream);
    assert_int_equal(launches_here(second), 1);
}

TWO_CLIENTS(a_call_here_keeps_a_batch_s_order)
{
    kops_client *client = real.client;

    assert_ok(kops_batch_begin(client, stream, &real.error));
    enqueue_square(client, &mine.b, &mine.a, KOPS_WHERE_HERE); /* the batch is empty */
    finish(stream);
    assert_true(from[2] == 0);
    fill();
    close_gate();
    enqueue_square(client, &mine.a, &mine.b, KOPS_WHERE_DEFAULT);
    enqueue_square(client, &mine.b, &mine.a, KOPS_WHERE_HERE);
    enqueue_square(client, &mine.a, &mine.b, KOPS_WHERE_DEFAULT);
    assert_int_equal(kops_batch_begin(client, stream, &real.error), KOPS_ERR_BAD_ARGUMENT); /* it is open still */
    open_gate();
    assert_ok(kops_batch_end(client, stream, &real.error));
    finish(stream);
    assert_true(from[2] == 16 && to[2] == 256);
    assert_int_equal(launches_here(client), 2);
}

/* On the legacy default stream. */
TWO_CLIENTS(a_call_here_that_waits_keeps_a_batch_s_order)
{
    const struct kops_request there = square_of(&others.a, &others.b, KOPS_WHERE_DAEMON),
                              any = square_of(&others.b, &others.a, KOPS_WHERE_DEFAULT);

    assert_ok(kops_batch_begin(second, NULL, &real.error));
    assert_ok(kops_enqueue(second, &there, NULL, &real.error));
    assert_ok(kops_run(second, &any, NULL, &real.error));
    assert_true(to[2] == 4 && from[2] == 16);
    assert_int_equal(launches_here(second), 1);
    assert_ok(kops_batch_end(second, NULL, &real.error));
}

/* A graph runs later than it is captured: the batch has no part in it. */
TWO_CLIENTS(a_call_that_is_captured_leaves_a_batch)
{
    CUgraph graph = NULL;

    assert_ok(kops_batch_begin(real.client, stream, &real.error));
    assert_int_equal(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
    enqueue_square(real.client, &mine.a, &mine.b, KOPS_WHERE_DEFAULT);
    enqueue_square(real.client, &mine.a, &mine.b, KOPS_WHERE_HERE);
    assert_int_equal(cuStreamEndCapture(stream, &graph), 0);
    assert_ok(kops_batch_end(real.client, stream, &real.error));
    launch_graph(graph, stream);
    assert_true(to[2] == 4);
}

TWO_CLIENTS(what_is_wrong_is_said_at_once)
{
    kops_client *client = real.client;
    const struct kops_tensor a = mine.a, b = mine.b;
    struct kops_request r;
    kops_ticket ticket;

#define REFUSED(change, expected)                                                                                      \
    do {                                                                                                               \
        r = square_of(&mine.a, &mine.b, KOPS_WHERE_HERE);                                                              \
        change;                                                                                                        \
        if (kops_run(client, &r, NULL, &real.error) != KOPS_ERR_##expected)                                            \
            fail_msg("%s: %s", #change, real.error.message);                                                           \
        mine.a = a;                                                                                                    \
        mine.b = b;                                                                                                    \
    } while (0)
    REFUSED(r.options.device = "0", BAD_ARGUMENT);
    REFUSED(r.options.repeat = 2, BAD_ARGUMENT);
    REFUSED(r.options.variant = "cublaslt", INVALID_ARGUMENT);
    REFUSED(mine.b.shape[0] = N - 1, SHAPE_MISMATCH);
    REFUSED(mine.a.offset = 4, OUT_OF_BOUNDS);
    REFUSED(r.op = "cube", UNKNOWN_OP);
    REFUSED(assert_int_equal(cuCtxSetCurrent(NULL), 0), NO_CUDA);
#undef REFUSED
    assert_int_equal(cuCtxSetCurrent(context), 0);
    r = square_of(&mine.a, &mine.b, KOPS_WHERE_HERE);
    assert_int_equal(kops_submit(client, &r, &ticket, &real.error), KOPS_ERR_BAD_ARGUMENT);
    assert_true(to[1] == 0);
    assert_ok(kops_run(client, &r, NULL, &real.error));
}

/* The next daemon gets what this process has, and what the dead one made, contents included; and hears of it where it
 * is gone. */
TWO_CLIENTS(memory_outlives_the_daemon)
{
    kops_client *client = real.client;
    const float values[N] = {1, 2, 3};
    struct kops_tensor made = mine.b;

    assert_ok(kops_buffer_alloc(client, BYTES, NULL, &made.buffer, &real.error));
    assert_ok(kops_buffer_write(made.buffer, 0, values, BYTES, &real.error));
    for (int round = 0; round < 2; round++) {
        replace(&real);
        assert_ok(kops_square(client, &mine.a, &mine.b, NULL, NULL, &real.error));
        assert_true(to[3] == 9);
        assert_ok(kops_square(client, &made, &mine.b, NULL, NULL, &real.error));
        assert_true(to[2] == 9);
    }
    assert_int_equal(cuMemFree((uintptr_t)from), 0);
    replace(&real);
    for (int again = 0; again < 2; again++)
        assert_int_equal(kops_square(client, &mine.a, &mine.b, NULL, NULL, &real.error), KOPS_ERR_BUFFER_LOST);
    assert_ok(kops_square(client, &made, &mine.b, NULL, NULL, &real.error));
    kops_buffer_release(made.buffer);
}

TWO_CLIENTS(a_graph_outlives_client_and_daemon)
{
    const struct kops_request only_there = square_of(&mine.a, &mine.b, KOPS_WHERE_DAEMON);
    CUgraph graph = NULL;
    CUgraphExec ready = NULL;

    assert_int_equal(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
    enqueue_square(real.client, &mine.a, &mine.b, KOPS_WHERE_DEFAULT);
    assert_int_equal(kops_enqueue(real.client, &only_there, stream, &real.error), KOPS_ERR_CAPTURING);
    assert_int_equal(cuStreamEndCapture(stream, &graph), 0);
    assert_int_equal(cuGraphInstantiateWithFlags(&ready, graph, 0), 0);
    assert_true(to[2] == 0); /* captured, and not run */
    real_kill(&real);
    for (int round = 1; round < 3; round++) {
        from[2] = (float)round;
        assert_int_equal(cuGraphLaunch(ready, stream), 0);
        finish(stream);
        assert_true(to[2] == (float)(round * round) && to[3] == 9);
    }
}

ALL_TESTS_WITH(load, NULL)

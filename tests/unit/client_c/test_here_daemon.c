/* Built-in ops in the caller's own context and its graphs, by a real daemon's kernels, with a driver in host memory
 * (tests/standin_cuda). Needs KOPSD and KOPS_CUDA_DRIVER, their paths, in the environment. */
#include <signal.h>
#include <unistd.h>

#include "ordered_fake.h"
#include "real_daemon.h"

enum { SIDE = 4, N = SIDE * SIDE, BYTES = N * sizeof(float), CAPTURE_RELAXED = 2 };

struct scene {
    struct real_daemon daemon;
    kops_client *client;
    kops_buffer *in, *out;
    struct kops_tensor a, b;
    float *from, *to; /* the stand-in's device memory is the host's */
    struct kops_request square;
    struct kops_error error;
};

static int begin(void **state)
{
    struct scene *s = calloc(1, sizeof(*s));
    struct kops_connect_options options = {.socket = NULL};
    uint64_t memory[2];

    if (!s)
        return -1;
    real_daemon_init(&s->daemon);
    s->daemon.driver = getenv("KOPS_CUDA_DRIVER");
    real_daemon_start(&s->daemon);
    options.socket = s->daemon.socket;
    assert_ok(kops_connect(&options, &s->client, &s->error));
    for (int i = 0; i < 2; i++)
        assert_int_equal(cu.mem_alloc(&memory[i], BYTES), 0);
    assert_ok(kops_buffer_register_cuda(s->client, memory[0], KOPS_ACCESS_RW, &s->in, &s->error));
    assert_ok(kops_buffer_register_cuda(s->client, memory[1], KOPS_ACCESS_RW, &s->out, &s->error));
    s->from = (float *)memory[0]; /* NOLINT(performance-no-int-to-ptr) */
    s->to = (float *)memory[1];   /* NOLINT(performance-no-int-to-ptr) */
    for (int i = 0; i < N; i++)
        s->from[i] = (float)i;
    memset(s->to, 0, BYTES);
    s->a = kops_vector(s->in, KOPS_F32, N);
    s->b = kops_vector(s->out, KOPS_F32, N);
    s->square = (struct kops_request){.op = "square", .inputs = &s->a, .n_inputs = 1, .outputs = &s->b, .n_outputs = 1};
    *state = s;
    return 0;
}

static int end(void **state)
{
    struct scene *s = *state;

    kops_buffer_release(s->in);
    kops_buffer_release(s->out);
    kops_close(s->client);
    real_daemon_free(&s->daemon);
    free(s);
    return 0;
}

static void an_op_is_launched_here(void **state)
{
    struct scene *s = *state;
    const struct kops_options here = {.where = KOPS_WHERE_HERE}, plain = {.where = KOPS_WHERE_HERE, .no_timing = true};
    struct kops_tensor m = kops_matrix(s->in, KOPS_F32, SIDE, SIDE), out = kops_matrix(s->out, KOPS_F32, SIDE, SIDE);
    struct kops_gemm_params params = KOPS_GEMM_INIT;
    struct kops_result result;
    struct kops_stats *stats;
    int told = 0;

    assert_ok(kops_square(s->client, &s->a, &s->b, &here, &result, &s->error));
    for (int i = 0; i < N; i++)
        assert_true(s->to[i] == (float)(i * i));
    assert_string_equal(result.variant, "vector");
    assert_string_equal(result.timer, "events");
    assert_true(result.gpu_us >= 0 && !strncmp(result.device, "GPU-", 4));
    params.trans_a = true;
    params.alpha = 0.5;
    assert_ok(kops_gemm(s->client, &m, &m, &out, &params, &plain, &result, &s->error));
    assert_true(s->to[0] == 0.5F * (0 + 16 + 64 + 144) && s->to[1] == 0.5F * (4 * 5 + 8 * 9 + 12 * 13));
    assert_string_equal(result.variant, "tiled");
    assert_true(result.gpu_us != result.gpu_us && result.timer[0] == 0);
    assert_ok(kops_stats_get(s->client, NULL, &stats, &s->error));
    for (const struct kops_stats_row *const *row = stats->rows; *row; row++)
        told += strcmp((*row)->variant, "here") == 0 && (*row)->count == 1 && (*row)->operations > 0;
    assert_int_equal(told, 2); /* square and gemm */
    kops_stats_free(stats);
}

/* Whether a square by another client, on that memory, ran here: only the daemon tells of all of a call's time. */
static bool runs_here(struct scene *s, enum kops_where of_connection, bool on_device, enum kops_where of_call)
{
    const struct kops_connect_options options = {.socket = s->daemon.socket, .where = of_connection};
    const struct kops_options how = {.where = of_call};
    struct kops_request request = s->square;
    struct kops_tensor from, to;
    struct kops_result result;
    kops_client *client;
    kops_buffer *in, *out;

    assert_ok(kops_connect(&options, &client, &s->error));
    if (on_device) {
        assert_ok(kops_buffer_register_cuda(client, (uintptr_t)s->from, KOPS_ACCESS_RW, &in, &s->error));
        assert_ok(kops_buffer_register_cuda(client, (uintptr_t)s->to, KOPS_ACCESS_RW, &out, &s->error));
    } else {
        assert_ok(kops_buffer_alloc(client, BYTES, NULL, &in, &s->error));
        assert_ok(kops_buffer_alloc(client, BYTES, NULL, &out, &s->error));
    }
    from = kops_vector(in, KOPS_F32, N);
    to = kops_vector(out, KOPS_F32, N);
    request.inputs = &from;
    request.outputs = &to;
    request.options = how;
    assert_ok(kops_run(client, &request, &result, &s->error));
    kops_buffer_release(in);
    kops_buffer_release(out);
    kops_close(client);
    return result.total_us != result.total_us;
}

static void the_place_is_a_choice_of_the_connection(void **state)
{
    struct scene *s = *state;
    kops_client *client;
    const struct kops_connect_options nowhere = {.socket = s->daemon.socket, .where = (enum kops_where)7},
                                      unsaid = {.socket = s->daemon.socket};

    assert_false(runs_here(s, KOPS_WHERE_DEFAULT, true, KOPS_WHERE_DEFAULT));
    assert_true(runs_here(s, KOPS_WHERE_HERE, true, KOPS_WHERE_DEFAULT));
    assert_false(runs_here(s, KOPS_WHERE_HERE, true, KOPS_WHERE_DAEMON));
    assert_false(runs_here(s, KOPS_WHERE_HERE, false, KOPS_WHERE_DEFAULT));
    assert_true(runs_here(s, KOPS_WHERE_DAEMON, true, KOPS_WHERE_HERE));
    assert_int_equal(setenv("KOPS_WHERE", "here", 1), 0);
    assert_true(runs_here(s, KOPS_WHERE_DEFAULT, true, KOPS_WHERE_DEFAULT));
    assert_false(runs_here(s, KOPS_WHERE_DAEMON, true, KOPS_WHERE_DEFAULT));
    assert_int_equal(setenv("KOPS_WHERE", "auto", 1), 0);
    assert_false(runs_here(s, KOPS_WHERE_DEFAULT, true, KOPS_WHERE_DEFAULT));
    assert_int_equal(setenv("KOPS_WHERE", "there", 1), 0);
    assert_int_equal(kops_connect(&unsaid, &client, &s->error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(s->error.message, "\"there\""));
    assert_int_equal(unsetenv("KOPS_WHERE"), 0);
    assert_int_equal(kops_connect(&nowhere, &client, &s->error), KOPS_ERR_BAD_ARGUMENT);
}

/* Another client, whose calls run here, on the scene's memory. */
struct goes_here {
    kops_client *client;
    kops_buffer *in, *out;
    struct kops_tensor from, to;
};

static void begin_here(struct scene *s, struct goes_here *h)
{
    const struct kops_connect_options options = {.socket = s->daemon.socket, .where = KOPS_WHERE_HERE};

    assert_ok(kops_connect(&options, &h->client, &s->error));
    assert_ok(kops_buffer_register_cuda(h->client, (uintptr_t)s->from, KOPS_ACCESS_RW, &h->in, &s->error));
    assert_ok(kops_buffer_register_cuda(h->client, (uintptr_t)s->to, KOPS_ACCESS_RW, &h->out, &s->error));
    h->from = kops_vector(h->in, KOPS_F32, N);
    h->to = kops_vector(h->out, KOPS_F32, N);
}

static void end_here(struct goes_here *h)
{
    kops_buffer_release(h->in);
    kops_buffer_release(h->out);
    kops_close(h->client);
}

static struct kops_request square_of(const struct kops_tensor *in, const struct kops_tensor *out, enum kops_where where)
{
    return (struct kops_request){
        .op = "square", .inputs = in, .n_inputs = 1, .outputs = out, .n_outputs = 1, .options = {.where = where}};
}

/* As a program does whose calls are in a loop: options that are the daemon's alone, tickets, and graphs go where they
 * can. */
static void what_is_the_daemons_alone_goes_there(void **state)
{
    struct scene *s = *state;
    struct goes_here h;
    struct kops_request request;
    struct kops_result result;
    kops_ticket ticket;
    kops_client *client;

    begin_here(s, &h);
    client = h.client;
    request = square_of(&h.from, &h.to, KOPS_WHERE_DEFAULT);
    assert_ok(kops_submit(client, &request, &ticket, &s->error));
    assert_ok(kops_wait(client, ticket, KOPS_FOREVER, &result, &s->error));
    assert_false(result.total_us != result.total_us);
    assert_ok(kops_enqueue(client, &request, stream, &s->error));
    assert_int_equal(cu.stream_synchronize(stream), 0);
    request.options.repeat = 3;
    assert_ok(kops_run(client, &request, &result, &s->error));
    assert_false(result.total_us != result.total_us);
    assert_true(s->to[3] == 9);
    end_here(&h);
}

static uint64_t told_of(struct scene *s, kops_client *client)
{
    struct kops_stats *stats;
    uint64_t n = 0;

    assert_ok(kops_stats_get(client, NULL, &stats, &s->error));
    for (const struct kops_stats_row *const *row = stats->rows; *row; row++)
        n += strcmp((*row)->variant, "here") == 0 ? (*row)->count : 0;
    kops_stats_free(stats);
    return n;
}

/* The daemon's op is gathered, and not sent before the batch ends. */
static void a_call_in_a_batch_is_the_daemons(void **state)
{
    struct scene *s = *state;
    struct goes_here h;
    struct kops_request there, any;

    begin_here(s, &h);
    there = square_of(&h.from, &h.to, KOPS_WHERE_DAEMON);
    any = square_of(&h.to, &h.from, KOPS_WHERE_DEFAULT);
    assert_ok(kops_batch_begin(h.client, stream, &s->error));
    assert_ok(kops_enqueue(h.client, &there, stream, &s->error));
    assert_ok(kops_enqueue(h.client, &any, stream, &s->error));
    assert_ok(kops_batch_end(h.client, stream, &s->error));
    assert_int_equal(cu.stream_synchronize(stream), 0);
    assert_true(s->to[2] == 4 && s->from[2] == 16);
    assert_int_equal(told_of(s, h.client), 0);
    assert_ok(kops_enqueue(h.client, &any, stream, &s->error)); /* after the batch */
    assert_int_equal(cu.stream_synchronize(stream), 0);
    assert_int_equal(told_of(s, h.client), 1);
    end_here(&h);
}

static void a_call_here_keeps_a_batch_s_order(void **state)
{
    struct scene *s = *state;
    struct kops_request there = s->square, here = square_of(&s->b, &s->a, KOPS_WHERE_HERE);

    assert_ok(kops_batch_begin(s->client, stream, &s->error));
    assert_ok(kops_enqueue(s->client, &here, stream, &s->error)); /* the batch is empty */
    assert_int_equal(cu.stream_synchronize(stream), 0);
    assert_true(s->from[2] == 0);
    for (int i = 0; i < N; i++)
        s->from[i] = (float)i;
    close_gate();
    assert_ok(kops_enqueue(s->client, &there, stream, &s->error));
    assert_ok(kops_enqueue(s->client, &here, stream, &s->error));
    assert_ok(kops_enqueue(s->client, &there, stream, &s->error));
    assert_int_equal(kops_batch_begin(s->client, stream, &s->error), KOPS_ERR_BAD_ARGUMENT); /* it is open still */
    open_gate();
    assert_ok(kops_batch_end(s->client, stream, &s->error));
    assert_int_equal(cu.stream_synchronize(stream), 0);
    assert_true(s->from[2] == 16 && s->to[2] == 256);
    assert_int_equal(told_of(s, s->client), 2);
}

/* On the legacy default stream. */
static void a_call_here_that_waits_keeps_a_batch_s_order(void **state)
{
    struct scene *s = *state;
    struct goes_here h;
    struct kops_request there, any;

    begin_here(s, &h);
    there = square_of(&h.from, &h.to, KOPS_WHERE_DAEMON);
    any = square_of(&h.to, &h.from, KOPS_WHERE_DEFAULT);
    assert_ok(kops_batch_begin(h.client, NULL, &s->error));
    assert_ok(kops_enqueue(h.client, &there, NULL, &s->error));
    assert_ok(kops_run(h.client, &any, NULL, &s->error));
    assert_true(s->to[2] == 4 && s->from[2] == 16);
    assert_int_equal(told_of(s, h.client), 1);
    assert_ok(kops_batch_end(h.client, NULL, &s->error));
    end_here(&h);
}

/* A graph runs later than it is captured: the batch has no part in it. */
static void a_call_that_is_captured_leaves_a_batch(void **state)
{
    struct scene *s = *state;
    struct kops_request here = s->square;
    void *graph = NULL, *ready = NULL;

    here.options.where = KOPS_WHERE_HERE;
    assert_ok(kops_batch_begin(s->client, stream, &s->error));
    assert_int_equal(cu.begin_capture(stream, CAPTURE_RELAXED), 0);
    assert_ok(kops_enqueue(s->client, &s->square, stream, &s->error));
    assert_ok(kops_enqueue(s->client, &here, stream, &s->error));
    assert_int_equal(cu.end_capture(stream, &graph), 0);
    assert_ok(kops_batch_end(s->client, stream, &s->error));
    assert_int_equal(cu.instantiate(&ready, graph, 0), 0);
    assert_int_equal(cu.graph_launch(ready, stream), 0);
    assert_int_equal(cu.stream_synchronize(stream), 0);
    assert_true(s->to[2] == 4);
}

static void what_is_wrong_is_said_at_once(void **state)
{
    struct scene *s = *state;
    struct kops_request r = s->square;
    kops_ticket ticket;

    r.options.where = KOPS_WHERE_HERE;
    assert_int_equal(kops_submit(s->client, &r, &ticket, &s->error), KOPS_ERR_BAD_ARGUMENT);
    r.options.device = "0";
    assert_int_equal(kops_run(s->client, &r, NULL, &s->error), KOPS_ERR_BAD_ARGUMENT);
    r.options.device = NULL;
    r.options.repeat = 2;
    assert_int_equal(kops_run(s->client, &r, NULL, &s->error), KOPS_ERR_BAD_ARGUMENT);
    r.options.repeat = 0;
    r.options.variant = "cublaslt";
    assert_int_equal(kops_run(s->client, &r, NULL, &s->error), KOPS_ERR_INVALID_ARGUMENT);
    r.options.variant = NULL;
    s->b.shape[0] = N - 1;
    assert_int_equal(kops_run(s->client, &r, NULL, &s->error), KOPS_ERR_SHAPE_MISMATCH);
    s->b.shape[0] = N;
    s->a.offset = 4;
    assert_int_equal(kops_run(s->client, &r, NULL, &s->error), KOPS_ERR_OUT_OF_BOUNDS);
    s->a.offset = 0;
    r.op = "cube";
    assert_int_equal(kops_run(s->client, &r, NULL, &s->error), KOPS_ERR_UNKNOWN_OP);
    assert_int_equal(cu.set(NULL), 0);
    r.op = "square";
    assert_int_equal(kops_run(s->client, &r, NULL, &s->error), KOPS_ERR_NO_CUDA);
    assert_int_equal(cu.set(context), 0);
    assert_true(s->to[1] == 0);
    assert_ok(kops_run(s->client, &r, NULL, &s->error));
}

static void a_graph_outlives_client_and_daemon(void **state)
{
    struct scene *s = *state;
    struct kops_request only_there = s->square;
    void *graph = NULL, *ready = NULL;

    only_there.options.where = KOPS_WHERE_DAEMON;
    assert_int_equal(cu.begin_capture(stream, CAPTURE_RELAXED), 0);
    assert_ok(kops_enqueue(s->client, &s->square, stream, &s->error));
    assert_int_equal(kops_enqueue(s->client, &only_there, stream, &s->error), KOPS_ERR_CAPTURING);
    assert_int_equal(cu.end_capture(stream, &graph), 0);
    assert_int_equal(cu.instantiate(&ready, graph, 0), 0);
    assert_true(s->to[2] == 0); /* captured, and not run */
    real_daemon_end(&s->daemon, SIGKILL);
    for (int round = 1; round < 3; round++) {
        s->from[2] = (float)round;
        assert_int_equal(cu.graph_launch(ready, stream), 0);
        assert_int_equal(cu.stream_synchronize(stream), 0);
        assert_true(s->to[2] == (float)(round * round) && s->to[3] == 9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_graph_outlives_client_and_daemon, begin, end),
        cmocka_unit_test_setup_teardown(an_op_is_launched_here, begin, end),
        cmocka_unit_test_setup_teardown(what_is_wrong_is_said_at_once, begin, end),
        cmocka_unit_test_setup_teardown(the_place_is_a_choice_of_the_connection, begin, end),
        cmocka_unit_test_setup_teardown(what_is_the_daemons_alone_goes_there, begin, end),
        cmocka_unit_test_setup_teardown(a_call_in_a_batch_is_the_daemons, begin, end),
        cmocka_unit_test_setup_teardown(a_call_here_keeps_a_batch_s_order, begin, end),
        cmocka_unit_test_setup_teardown(a_call_here_that_waits_keeps_a_batch_s_order, begin, end),
        cmocka_unit_test_setup_teardown(a_call_that_is_captured_leaves_a_batch, begin, end),
    };

    return cmocka_run_group_tests(tests, load_for_all, NULL);
}

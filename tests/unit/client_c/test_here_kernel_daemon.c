/* A kernel of a daemon that compiles it (examples_test starts it). Launches in the caller's own context: one that
 * repeats the last one is not checked again, and every other one is, whatever it differs in. */
#include "driver.h"
#include "scene.h"

enum { N = 1000, BYTES = N * sizeof(float), SKIP = 77 };

/* A client whose launches run here, unless they say otherwise. */
static const struct kops_launch_options here = {.options = {.where = KOPS_WHERE_HERE}},
                                        there = {.options = {.where = KOPS_WHERE_DAEMON}};

static kops_client *client;
static kops_kernel *twice;

static const char twice_source[] = "extern \"C\" __global__ void custom_kernel(float *out, const float *in, int n)\n"
                                   "{\n"
                                   "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                                   "    if (i < n)\n"
                                   "        out[i] = 2 * in[i];\n"
                                   "}\n";

/* The extents of both are `size`. The stand-in driver knows the kernel by its name. */
static enum kops_code compile_twice(const char *size, kops_kernel **ret)
{
    const struct kops_param params[] = {
        {.name = "out", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .rank = 1, .shape = {size}},
        {.name = "in", .kind = KOPS_PARAM_IN, .dtype = KOPS_F32, .rank = 1, .shape = {size}},
        {.name = "n", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_I32}};
    const struct kops_source source = {.text = twice_source};
    const struct kops_signature signature = {.entry = "custom_kernel",
                                             .params = params,
                                             .n_params = 3,
                                             .geometry = {.grid = {"ceil_div(n, 128)"}, .block = {"128"}}};

    return kops_kernel_compile(client, &source, &signature, ret, NULL, NULL);
}

/* Two vectors, and the call that a test repeats before it makes another one. */
struct repeated {
    CUdeviceptr memory[2];
    kops_buffer *in, *out;
    struct kops_tensor a, b;
    struct kops_argument args[3];
    size_t n_args;
    struct kops_launch_options how;
    struct kops_error error;
};

static int connect_and_compile(void **state)
{
    const struct kops_connect_options options = {.where = KOPS_WHERE_HERE};

    setenv("KOPS_STANDIN_DEVICES", "2", 1); /* in this process; the tensors are on the first */
    open_control(NULL);
    load(NULL);
    assert_ok(kops_connect(&options, &client, NULL));
    if (!kops_info_feature(client, "code"))
        exit(SKIP);
    assert_ok(compile_twice("n", &twice));
    return 0;
}

static int close_client(void **state)
{
    kops_kernel_free(twice);
    kops_close(client);
    return close_control(NULL);
}

static float *values_of(uint64_t memory)
{
    return (float *)memory; /* NOLINT(performance-no-int-to-ptr): the stand-in's device memory is the host's */
}

static void set_call(struct repeated *s)
{
    s->a = kops_vector(s->in, KOPS_F32, N);
    s->b = kops_vector(s->out, KOPS_F32, N);
    s->args[0] = kops_arg_tensor(&s->b);
    s->args[1] = kops_arg_tensor(&s->a);
    s->args[2] = kops_arg_int(N);
    s->n_args = 3;
    s->how = here;
}

static enum kops_code launch_on(struct repeated *s, CUstream on)
{
    return kops_kernel_enqueue(twice, s->args, s->n_args, &s->how, on, &s->error);
}

static enum kops_code launch(struct repeated *s)
{
    return launch_on(s, stream);
}

/* What the first `n` elements of the input, from `from` on, have become; the others are 0. */
static void expect_doubled(struct repeated *s, int n, int from)
{
    finish(stream);
    for (int i = 0; i < N; i++)
        if (values_of(s->memory[1])[i] != (i < n ? 2 * values_of(s->memory[0])[from + i] : 0))
            fail_msg("element %d is %g", i, (double)values_of(s->memory[1])[i]);
    memset(values_of(s->memory[1]), 0, BYTES);
}

/* Launches the call twice, so that the second repeats the first, and empties what it wrote. */
static void repeat_call(struct repeated *s)
{
    set_call(s);
    assert_ok(launch(s));
    assert_ok(launch(s));
    expect_doubled(s, N, 0);
}

static int begin(void **state)
{
    struct repeated *s = calloc(1, sizeof(*s));

    if (!s)
        return -1;
    for (int i = 0; i < 2; i++)
        s->memory[i] = allocate(BYTES);
    assert_ok(kops_buffer_register_cuda(client, s->memory[0], KOPS_ACCESS_RW, &s->in, &s->error));
    assert_ok(kops_buffer_register_cuda(client, s->memory[1], KOPS_ACCESS_RW, &s->out, &s->error));
    for (int i = 0; i < N; i++)
        values_of(s->memory[0])[i] = (float)i;
    repeat_call(s);
    *state = s;
    return 0;
}

static int end(void **state)
{
    struct repeated *s = *state;

    kops_buffer_release(s->in);
    kops_buffer_release(s->out);
    for (int i = 0; i < 2; i++)
        assert_int_equal(cuMemFree(s->memory[i]), 0);
    free(s);
    return 0;
}

/* That nothing was launched, and that the call can be repeated as before. */
static void assert_nothing_ran(struct repeated *s)
{
    expect_doubled(s, 0, 0);
    repeat_call(s);
}

#define REPEATED(name) TEST_OF(struct repeated *s, name, begin, end)

REPEATED(every_other_call_is_checked)
{
#define REFUSED(change, expected)                                                                                      \
    do {                                                                                                               \
        change;                                                                                                        \
        if (launch(s) != KOPS_ERR_##expected)                                                                          \
            fail_msg("%s: %d, %s", #change, (int)s->error.code, s->error.message);                                     \
        assert_nothing_ran(s);                                                                                         \
    } while (0)
    REFUSED(s->a.shape[0] = N - 1, SHAPE_MISMATCH);
    REFUSED(s->args[2] = kops_arg_int(N + 1), SHAPE_MISMATCH);
    REFUSED(s->args[2] = kops_arg_float(N + 0.5), WRONG_TYPE);
    REFUSED(s->args[2] = kops_arg_uint(UINT64_MAX), OUT_OF_RANGE);
    REFUSED((s->a.has_strides = true, s->a.strides[0] = 0), SHAPE_MISMATCH);
    REFUSED((s->a.has_strides = true, s->a.strides[0] = 2), OUT_OF_BOUNDS);
    REFUSED(s->a.dtype = KOPS_I32, DTYPE_MISMATCH);
    REFUSED(s->a.dtype = (enum kops_dtype)99, BAD_ARGUMENT);
    REFUSED(s->a.rank = 2, SHAPE_MISMATCH);
    REFUSED(s->a.rank = KOPS_MAX_RANK + 1, BAD_ARGUMENT);
    REFUSED(s->a.offset = 4, OUT_OF_BOUNDS);
    REFUSED(s->a.offset = 2, MISALIGNED);
    REFUSED(s->a.offset = UINT64_MAX, OUT_OF_BOUNDS);
    REFUSED(s->a.buffer = s->out, OVERLAP);
    REFUSED(s->args[1] = kops_arg_null(), SHAPE_MISMATCH);
    REFUSED(s->args[1] = kops_arg_int(1), WRONG_TYPE);
    REFUSED(s->n_args = 2, INVALID_ARGUMENT);
    REFUSED(s->how.geometry.block = ((struct kops_dims){1, {4096}}), OUT_OF_RANGE);
    REFUSED(s->how.geometry.grid = ((struct kops_dims){2, {1, 0}}), OUT_OF_RANGE);
    REFUSED((s->how.geometry.has_shared = true, s->how.geometry.shared = 1 << 30), OUT_OF_RANGE);
    /* Also behind one whose geometry was given. */
    for (int i = 0; i < 2; i++) {
        s->how.geometry.has_shared = true;
        assert_ok(launch(s));
        expect_doubled(s, N, 0);
        if (i)
            REFUSED(s->how.geometry.shared = -1, OUT_OF_RANGE);
        else
            REFUSED(s->how.geometry.cluster = ((struct kops_dims){1, {3}}), INVALID_ARGUMENT);
    }
#undef REFUSED
}

REPEATED(what_differs_is_launched_as_it_is)
{
    s->a.shape[0] = s->b.shape[0] = 3;
    s->a.offset = 8;
    s->args[2] = kops_arg_int(3);
    assert_ok(launch(s));
    expect_doubled(s, 3, 2);
    repeat_call(s);
    s->how.geometry.grid = (struct kops_dims){1, {1}};
    assert_ok(launch(s));
    expect_doubled(s, 128, 0);
    s->how.geometry.block = (struct kops_dims){1, {64}};
    assert_ok(launch(s));
    expect_doubled(s, 64, 0);
}

/* A smaller allocation has the address of one that was freed, and its buffer is as likely where the old one was. */
REPEATED(memory_that_took_the_place_of_other_is_checked)
{
    const uint64_t before = s->memory[0];

    kops_buffer_release(s->in);
    assert_int_equal(cuMemFree(s->memory[0]), 0);
    s->memory[0] = allocate(BYTES / 2);
    assert_int_equal(s->memory[0], before);
    assert_ok(kops_buffer_register_cuda(client, s->memory[0], KOPS_ACCESS_RW, &s->in, &s->error));
    s->a.buffer = s->in;
    assert_int_equal(launch(s), KOPS_ERR_OUT_OF_BOUNDS);
    for (int i = 0; i < N / 2; i++)
        values_of(s->memory[0])[i] = 5;
    s->a.shape[0] = s->b.shape[0] = N / 2;
    s->args[2] = kops_arg_int(N / 2);
    assert_ok(launch(s));
    expect_doubled(s, N / 2, 0);
}

REPEATED(a_buffer_of_another_client_is_refused)
{
    kops_buffer *same_memory;
    kops_client *other;

    assert_ok(kops_connect(NULL, &other, &s->error));
    assert_ok(kops_buffer_register_cuda(other, s->memory[0], KOPS_ACCESS_RW, &same_memory, &s->error));
    s->a.buffer = same_memory;
    assert_int_equal(launch(s), KOPS_ERR_BAD_ARGUMENT);
    assert_nothing_ran(s);
    kops_buffer_release(same_memory);
    kops_close(other);
}

/* In a batch, launches are the daemon's, and not sent before the batch ends or one here is put on its stream. */
REPEATED(launches_here_and_in_a_batch_keep_their_order)
{
    struct kops_argument back[] = {kops_arg_tensor(&s->a), kops_arg_tensor(&s->b), kops_arg_int(N)};
    const uint64_t before = launches_here(client);

    for (int i = 0; i < 2; i++) {
        assert_ok(kops_batch_begin(client, stream, &s->error));
        assert_ok(kops_kernel_enqueue(twice, s->args, 3, &there, stream, &s->error));
        assert_ok(kops_kernel_enqueue(twice, back, 3, i ? &here : NULL, stream, &s->error));
        assert_ok(kops_kernel_enqueue(twice, s->args, 3, NULL, stream, &s->error));
        assert_ok(kops_batch_end(client, stream, &s->error));
        finish(stream);
        assert_int_equal(launches_here(client), before + (unsigned)i);
    }
    assert_true(values_of(s->memory[0])[1] == 16 && values_of(s->memory[1])[1] == 32);
}

REPEATED(the_stream_is_each_launch_s_own)
{
    CUgraph graph = NULL;
    CUstream other = NULL;

    assert_int_equal(cuStreamCreate(&other, 1), 0);
    close_gate(); /* of `stream` */
    assert_ok(launch_on(s, other));
    finish(other);
    assert_true(values_of(s->memory[1])[N - 1] == 2.0F * (N - 1));
    open_gate();
    finish(stream);
    memset(values_of(s->memory[1]), 0, BYTES);

    assert_int_equal(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
    assert_ok(launch_on(s, other));
    assert_int_equal(cuStreamEndCapture(other, &graph), 0);
    assert_true(values_of(s->memory[1])[1] == 0); /* captured, and not run */
    launch_graph(graph, other);
    assert_true(values_of(s->memory[1])[1] == 2);
    assert_int_equal(cuStreamDestroy(other), 0);
}

REPEATED(the_context_is_each_launch_s_own)
{
    CUcontext second = NULL;
    int device;

    assert_int_equal(cuCtxSetCurrent(NULL), 0);
    assert_int_equal(launch(s), KOPS_ERR_NO_CUDA);
    assert_int_equal(cuDeviceGet(&device, 1), 0);
    assert_int_equal(cuDevicePrimaryCtxRetain(&second, device), 0);
    assert_int_equal(cuCtxSetCurrent(second), 0);
    assert_int_equal(launch_on(s, NULL), KOPS_ERR_DEVICE_MISMATCH);
    assert_int_equal(launch_on(s, NULL), KOPS_ERR_DEVICE_MISMATCH);
    assert_int_equal(cuCtxSetCurrent(context), 0);
    assert_nothing_ran(s);
}

REPEATED(another_declaration_has_its_own_checks)
{
    kops_kernel *strict, *first = twice;

    assert_ok(compile_twice("n + 1", &strict));
    twice = strict;
    assert_int_equal(launch(s), KOPS_ERR_SHAPE_MISMATCH);
    kops_kernel_free(strict);
    /* It may well be where the one before was. */
    assert_ok(compile_twice("2 * n", &strict));
    twice = strict;
    assert_int_equal(launch(s), KOPS_ERR_SHAPE_MISMATCH);
    s->args[2] = kops_arg_int(N / 2);
    assert_ok(launch(s));
    expect_doubled(s, N / 2, 0);
    kops_kernel_free(strict);
    twice = first;
}

static int launch_in_a_child(void *scene)
{
    return launch(scene) == KOPS_ERR_NO_CUDA ? 0 : 1;
}

/* A launch is not one of the daemon's where its memory is the parent's. */
REPEATED(a_child_launches_nothing)
{
    in_child(launch_in_a_child, s);
    assert_nothing_ran(s);
}

/* ---- threads ---- */

enum { THREADS = 4, LAUNCHES = 500 };

struct worker {
    struct kops_tensor out;
    const struct repeated *scene;
    CUstream stream;
};

/* Launches two calls by turns, each twice, on a part of the memory of its own. */
static void *work(void *context_of_thread)
{
    const struct worker *w = context_of_thread;

    if (cuCtxSetCurrent(context))
        return "no context";
    for (int i = 0; i < LAUNCHES; i++) {
        const int n = i & 2 ? 50 : 100;
        struct kops_tensor in = kops_vector(w->scene->in, KOPS_F32, n), out = w->out;
        const struct kops_argument args[] = {kops_arg_tensor(&out), kops_arg_tensor(&in), kops_arg_int(n)};

        out.shape[0] = n;
        if (kops_kernel_enqueue(twice, args, 3, &here, w->stream, NULL))
            return "a launch failed";
    }
    return cuStreamSynchronize(w->stream) ? "the stream failed" : NULL;
}

REPEATED(a_launch_that_the_driver_refuses_is_not_counted)
{
    enum { INVALID_VALUE = 1 /* CUDA_ERROR_INVALID_VALUE */ };
    const uint64_t before = launches_here(client);

    fail_next("cuLaunchKernel", 1, INVALID_VALUE, false);
    assert_int_equal(launch(s), KOPS_ERR_DEVICE_ERROR);
    assert_int_equal(launches_here(client), before);
    assert_ok(launch(s));
    assert_int_equal(launches_here(client), before + 1);
}

REPEATED(threads_share_a_kernel)
{
    struct worker workers[THREADS];
    const uint64_t before = launches_here(client);

    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.scene = s, .out = kops_vector(s->out, KOPS_F32, 100)};
        workers[i].out.offset = (uint64_t)i * 100 * sizeof(float);
        assert_int_equal(cuStreamCreate(&workers[i].stream, 1), 0);
    }
    in_threads(THREADS, work, workers, sizeof(workers[0]));
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(cuStreamDestroy(workers[i].stream), 0);
    for (int i = 0; i < N; i++)
        assert_true(values_of(s->memory[1])[i] == (i < 100 * THREADS ? 2.0F * (float)(i % 100) : 0));
    assert_int_equal(launches_here(client), before + (uint64_t)THREADS * LAUNCHES);
}

ALL_TESTS_WITH(connect_and_compile, close_client)

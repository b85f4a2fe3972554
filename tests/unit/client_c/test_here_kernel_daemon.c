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
static float *from, *to; /* the stand-in's device memory is the host's */
static kops_buffer *in, *out;
static struct kops_tensor a, b;
static struct kops_argument args[3];
static size_t n_args;
static struct kops_launch_options how;
static struct kops_error error;

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

static float *floats(size_t size)
{
    return (float *)allocate(size); /* NOLINT(performance-no-int-to-ptr) */
}

static void give(float *memory)
{
    assert_int_equal(cuMemFree((uintptr_t)memory), 0);
}

static void set_call(void)
{
    a = kops_vector(in, KOPS_F32, N);
    b = kops_vector(out, KOPS_F32, N);
    args[0] = kops_arg_tensor(&b);
    args[1] = kops_arg_tensor(&a);
    args[2] = kops_arg_int(N);
    n_args = 3;
    how = here;
}

static enum kops_code launch_on(CUstream on)
{
    return kops_kernel_enqueue(twice, args, n_args, &how, on, &error);
}

static enum kops_code launch(void)
{
    return launch_on(stream);
}

/* What the first `n` elements of the input, from `first` on, have become; the others are 0. */
static void expect_doubled(int n, int first)
{
    finish(stream);
    for (int i = 0; i < N; i++)
        if (to[i] != (i < n ? 2 * from[first + i] : 0))
            fail_msg("element %d is %g", i, (double)to[i]);
    memset(to, 0, BYTES);
}

/* Launches the call twice, so that the second repeats the first, and empties what it wrote. */
static void repeat_call(void)
{
    set_call();
    assert_ok(launch());
    assert_ok(launch());
    expect_doubled(N, 0);
}

static int begin(void **state)
{
    from = floats(BYTES);
    to = floats(BYTES);
    assert_ok(kops_buffer_register_cuda(client, (uintptr_t)from, KOPS_ACCESS_RW, &in, &error));
    assert_ok(kops_buffer_register_cuda(client, (uintptr_t)to, KOPS_ACCESS_RW, &out, &error));
    for (int i = 0; i < N; i++)
        from[i] = (float)i;
    repeat_call();
    return 0;
}

static int end(void **state)
{
    kops_buffer_release(in);
    kops_buffer_release(out);
    give(from);
    give(to);
    return 0;
}

/* That nothing was launched, and that the call can be repeated as before. */
static void assert_nothing_ran(void)
{
    expect_doubled(0, 0);
    repeat_call();
}

#define REPEATED(name) TEST_WITH(name, begin, end)

REPEATED(every_other_call_is_checked)
{
#define REFUSED(change, expected)                                                                                      \
    do {                                                                                                               \
        change;                                                                                                        \
        if (launch() != KOPS_ERR_##expected)                                                                           \
            fail_msg("%s: %d, %s", #change, (int)error.code, error.message);                                           \
        assert_nothing_ran();                                                                                          \
    } while (0)
    REFUSED(a.shape[0] = N - 1, SHAPE_MISMATCH);
    REFUSED(args[2] = kops_arg_int(N + 1), SHAPE_MISMATCH);
    REFUSED(args[2] = kops_arg_float(N + 0.5), WRONG_TYPE);
    REFUSED(args[2] = kops_arg_uint(UINT64_MAX), OUT_OF_RANGE);
    REFUSED((a.has_strides = true, a.strides[0] = 0), SHAPE_MISMATCH);
    REFUSED((a.has_strides = true, a.strides[0] = 2), OUT_OF_BOUNDS);
    REFUSED(a.dtype = KOPS_I32, DTYPE_MISMATCH);
    REFUSED(a.dtype = (enum kops_dtype)99, BAD_ARGUMENT);
    REFUSED(a.rank = 2, SHAPE_MISMATCH);
    REFUSED(a.rank = KOPS_MAX_RANK + 1, BAD_ARGUMENT);
    REFUSED(a.offset = 4, OUT_OF_BOUNDS);
    REFUSED(a.offset = 2, MISALIGNED);
    REFUSED(a.offset = UINT64_MAX, OUT_OF_BOUNDS);
    REFUSED(a.buffer = out, OVERLAP);
    REFUSED(args[1] = kops_arg_null(), SHAPE_MISMATCH);
    REFUSED(args[1] = kops_arg_int(1), WRONG_TYPE);
    REFUSED(n_args = 2, INVALID_ARGUMENT);
    REFUSED(how.geometry.block = ((struct kops_dims){1, {4096}}), OUT_OF_RANGE);
    REFUSED(how.geometry.grid = ((struct kops_dims){2, {1, 0}}), OUT_OF_RANGE);
    REFUSED((how.geometry.has_shared = true, how.geometry.shared = 1 << 30), OUT_OF_RANGE);
    /* Also behind one whose geometry and strides were given. */
    for (int i = 0; i < 3; i++) {
        how.geometry.has_shared = true;
        a.has_strides = true;
        a.strides[0] = 1;
        assert_ok(launch());
        expect_doubled(N, 0);
        if (i == 0)
            REFUSED(how.geometry.cluster = ((struct kops_dims){1, {3}}), INVALID_ARGUMENT);
        else if (i == 1)
            REFUSED(how.geometry.shared = -1, OUT_OF_RANGE);
        else
            REFUSED(a.strides[0] = 2, OUT_OF_BOUNDS);
    }
#undef REFUSED
}

/* A smaller allocation has the address of one that was freed, and its buffer is as likely where the old one was. */
REPEATED(memory_that_took_the_place_of_other_is_checked)
{
    const float *before = from;

    kops_buffer_release(in);
    give(from);
    from = floats(BYTES / 2);
    assert_ptr_equal(from, before);
    assert_ok(kops_buffer_register_cuda(client, (uintptr_t)from, KOPS_ACCESS_RW, &in, &error));
    a.buffer = in;
    assert_int_equal(launch(), KOPS_ERR_OUT_OF_BOUNDS);
    for (int i = 0; i < N / 2; i++)
        from[i] = 5;
    a.shape[0] = b.shape[0] = N / 2;
    args[2] = kops_arg_int(N / 2);
    assert_ok(launch());
    expect_doubled(N / 2, 0);
}

REPEATED(a_buffer_of_another_client_is_refused)
{
    kops_buffer *same_memory;
    kops_client *other;

    assert_ok(kops_connect(NULL, &other, &error));
    assert_ok(kops_buffer_register_cuda(other, (uintptr_t)from, KOPS_ACCESS_RW, &same_memory, &error));
    a.buffer = same_memory;
    assert_int_equal(launch(), KOPS_ERR_BAD_ARGUMENT);
    assert_nothing_ran();
    kops_buffer_release(same_memory);
    kops_close(other);
}

/* In a batch, launches are the daemon's, and not sent before the batch ends or one here is put on its stream. */
REPEATED(launches_here_and_in_a_batch_keep_their_order)
{
    struct kops_argument back[] = {kops_arg_tensor(&a), kops_arg_tensor(&b), kops_arg_int(N)};
    const uint64_t before = launches_here(client);

    for (int i = 0; i < 2; i++) {
        assert_ok(kops_batch_begin(client, stream, &error));
        assert_ok(kops_kernel_enqueue(twice, args, 3, &there, stream, &error));
        assert_ok(kops_kernel_enqueue(twice, back, 3, i ? &here : NULL, stream, &error));
        assert_ok(kops_kernel_enqueue(twice, args, 3, NULL, stream, &error));
        assert_ok(kops_batch_end(client, stream, &error));
        finish(stream);
        assert_int_equal(launches_here(client), before + (unsigned)i);
    }
    assert_true(from[1] == 16 && to[1] == 32);
}

REPEATED(the_stream_is_each_launch_s_own)
{
    CUgraph graph = NULL;
    CUstream other = NULL;

    assert_int_equal(cuStreamCreate(&other, 1), 0);
    close_gate(); /* of `stream` */
    assert_ok(launch_on(other));
    finish(other);
    assert_true(to[N - 1] == 2.0F * (N - 1));
    open_gate();
    finish(stream);
    memset(to, 0, BYTES);

    assert_int_equal(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
    assert_ok(launch_on(other));
    assert_int_equal(cuStreamEndCapture(other, &graph), 0);
    assert_true(to[1] == 0); /* captured, and not run */
    launch_graph(graph, other);
    assert_true(to[1] == 2);
    assert_int_equal(cuStreamDestroy(other), 0);
}

REPEATED(the_context_is_each_launch_s_own)
{
    CUcontext second = NULL;
    int device;

    assert_int_equal(cuCtxSetCurrent(NULL), 0);
    assert_int_equal(launch(), KOPS_ERR_NO_CUDA);
    assert_int_equal(cuDeviceGet(&device, 1), 0);
    assert_int_equal(cuDevicePrimaryCtxRetain(&second, device), 0);
    assert_int_equal(cuCtxSetCurrent(second), 0);
    assert_int_equal(launch_on(NULL), KOPS_ERR_DEVICE_MISMATCH);
    assert_int_equal(launch_on(NULL), KOPS_ERR_DEVICE_MISMATCH);
    assert_int_equal(cuCtxSetCurrent(context), 0);
    assert_nothing_ran();
}

REPEATED(another_declaration_has_its_own_checks)
{
    kops_kernel *strict, *first = twice;

    assert_ok(compile_twice("n + 1", &strict));
    twice = strict;
    assert_int_equal(launch(), KOPS_ERR_SHAPE_MISMATCH);
    kops_kernel_free(strict);
    /* It may well be where the one before was. */
    assert_ok(compile_twice("2 * n", &strict));
    twice = strict;
    assert_int_equal(launch(), KOPS_ERR_SHAPE_MISMATCH);
    args[2] = kops_arg_int(N / 2);
    assert_ok(launch());
    expect_doubled(N / 2, 0);
    kops_kernel_free(strict);
    twice = first;
}

static int launch_in_a_child(void *unused)
{
    return launch() == KOPS_ERR_NO_CUDA ? 0 : 1;
}

/* A launch is not one of the daemon's where its memory is the parent's. */
REPEATED(a_child_launches_nothing)
{
    in_child(launch_in_a_child, NULL);
    assert_nothing_ran();
}

REPEATED(a_launch_that_the_driver_refuses_is_not_counted)
{
    enum { INVALID_VALUE = 1 /* CUDA_ERROR_INVALID_VALUE */ };
    const uint64_t before = launches_here(client);

    fail_next("cuLaunchKernel", 1, INVALID_VALUE, false);
    assert_int_equal(launch(), KOPS_ERR_DEVICE_ERROR);
    assert_int_equal(launches_here(client), before);
    assert_ok(launch());
    assert_int_equal(launches_here(client), before + 1);
}

/* ---- threads ---- */

enum { THREADS = 4, LAUNCHES = 500 };

/* Launches two calls by turns, each twice, on a part of the memory of its own. */
static void *work(void *part)
{
    struct kops_tensor given = a, made = *(const struct kops_tensor *)part;
    CUstream own;

    if (cuCtxSetCurrent(context) || cuStreamCreate(&own, CU_STREAM_NON_BLOCKING))
        return "no stream";
    for (int i = 0; i < LAUNCHES; i++) {
        const int n = i & 2 ? 50 : 100;
        const struct kops_argument call[] = {kops_arg_tensor(&made), kops_arg_tensor(&given), kops_arg_int(n)};

        given.shape[0] = made.shape[0] = n;
        if (kops_kernel_enqueue(twice, call, 3, &here, own, NULL))
            return "a launch failed";
    }
    return cuStreamSynchronize(own) || cuStreamDestroy(own) ? "the stream failed" : NULL;
}

REPEATED(threads_share_a_kernel)
{
    struct kops_tensor parts[THREADS];
    const uint64_t before = launches_here(client);

    vectors_in(out, 100, THREADS, parts);
    in_threads(THREADS, work, parts, sizeof(parts[0]));
    for (int i = 0; i < N; i++)
        assert_true(to[i] == (i < 100 * THREADS ? 2.0F * (float)(i % 100) : 0));
    assert_int_equal(launches_here(client), before + (uint64_t)THREADS * LAUNCHES);
}

ALL_TESTS_WITH(connect_and_compile, close_client)

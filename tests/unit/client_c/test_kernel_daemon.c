/* Kernels with a daemon that compiles and launches them (examples_test starts it): in sequences, programs and batches,
 * over shared memory and GPU memory. */
#include "ordered_fake.h"

enum { N = 1000, SKIP = 77 };

static kops_client *client;
static kops_kernel *twice;
static struct kops_error error;

/* In the daemon: a in, b and c written by turns. */
static struct kops_tensor a, b, c;

static int connect_and_compile(void **state)
{
    load();
    assert_ok(kops_connect(NULL, &client, &error));
    if (!kops_info_feature(client, "kernels"))
        exit(SKIP);
    assert_ok(compile_twice(client, "n", &twice, &error));
    return 0;
}

static int close_client(void **state)
{
    kops_kernel_free(twice);
    kops_close(client);
    return 0;
}

enum kind { SHARED, OF_THE_GPU, EXPORTED };

static kops_buffer *place(enum kind kind)
{
    kops_buffer *buffer = NULL;
    struct kops_tensor t[3];
    float values[3 * N];

    if (kind == SHARED)
        assert_ok(kops_buffer_alloc_shared(client, sizeof(values), &buffer, &error));
    else if (kind == OF_THE_GPU)
        assert_ok(kops_buffer_alloc(client, sizeof(values), "0", &buffer, &error));
    else
        assert_ok(kops_buffer_register_cuda(client, allocate(sizeof(values)), KOPS_ACCESS_RW, &buffer, &error));
    for (int i = 0; i < 3 * N; i++)
        values[i] = i < N ? (float)i : -1;
    assert_ok(kops_buffer_write(buffer, 0, values, sizeof(values), &error));
    vectors_in(buffer, N, 3, t);
    a = t[0];
    b = t[1];
    c = t[2];
    return buffer;
}

static void assert_holds(const struct kops_tensor *t, double factor)
{
    float values[N];

    assert_ok(kops_buffer_read(t->buffer, t->offset, values, sizeof(values), &error));
    for (int i = 0; i < N; i++)
        if ((double)values[i] != factor * i)
            fail_msg("element %d is %g, not %g", i, (double)values[i], factor * i);
}

/* b = 2 (a + a), c = 2 b */
struct steps {
    struct kops_tensor tensors[3];
    uint32_t in[2], out[1];
    struct kops_argument first[3], second[3];
    struct kops_launch_geometry small;
    struct kops_step steps[3];
    struct kops_sequence sequence;
};

static const struct kops_sequence *three_steps(struct steps *s)
{
    *s = (struct steps){.tensors = {a, b, c},
                        .in = {0, 0},
                        .out = {2},
                        .first = {kops_arg_index(1), kops_arg_index(2), kops_arg_int(N)},
                        .second = {kops_arg_index(2), kops_arg_index(1), kops_arg_int(N)},
                        .small = {.grid = {1, {N / 100}}, .block = {1, {100}}}};
    s->steps[0] = (struct kops_step){.op = "add", .inputs = s->in, .n_inputs = 2, .outputs = s->out, .n_outputs = 1};
    s->steps[1] = (struct kops_step){.kernel = twice, .args = s->first, .n_args = 3};
    s->steps[2] = (struct kops_step){.kernel = twice, .args = s->second, .n_args = 3, .geometry = &s->small};
    s->sequence = (struct kops_sequence){s->tensors, 3, s->steps, 3};
    return &s->sequence;
}

/* Only where the daemon has executors, whose work it can hold back; elsewhere it is refused. */
TEST(exclusive_work_says_whether_it_was)
{
    const struct kops_options alone = {.device = NULL, .exclusive = true, .repeat = 5};
    struct kops_result result;
    struct steps s;
    kops_buffer *buffer = place(OF_THE_GPU);

    if (!kops_info_feature(client, "exclusive")) {
        assert_int_equal(kops_square(client, &a, &b, &alone, &result, &error), KOPS_ERR_UNSUPPORTED);
        kops_buffer_release(buffer);
        return;
    }
    assert_ok(kops_square(client, &a, &b, &alone, &result, &error));
    assert_true(result.exclusive && result.wall_us > 0 && result.wall_us <= result.total_us);
    assert_ok(kops_sequence_run(client, three_steps(&s), &(struct kops_options){.exclusive = true}, &result, &error));
    assert_true(result.exclusive);
    assert_ok(kops_sequence_run(client, three_steps(&s), NULL, &result, &error));
    assert_false(result.exclusive);
    assert_holds(&c, 8);
    kops_buffer_release(buffer);
}

TEST(sequences_and_programs_launch_them)
{
    struct steps s;
    kops_program *program;
    kops_buffer *buffer = place(SHARED), *other;

    assert_ok(kops_sequence_run(client, three_steps(&s), NULL, NULL, &error));
    assert_holds(&b, 4);
    assert_holds(&c, 8);
    kops_buffer_release(buffer);

    /* On the GPU's own memory, which a program wants. */
    other = place(OF_THE_GPU);
    buffer = place(OF_THE_GPU);
    assert_ok(kops_program_define(client, three_steps(&s), NULL, &program, &error));
    assert_ok(kops_program_run(program, NULL, 0, NULL, NULL, &error));
    assert_holds(&c, 8);
    const struct kops_binding binding = {.tensor = 2, .buffer = other, .offset = c.offset};
    assert_ok(kops_program_run(program, &binding, 1, NULL, NULL, &error));
    c.buffer = other;
    assert_holds(&c, 8);
    kops_program_release(program);
    kops_buffer_release(buffer);
    kops_buffer_release(other);
}

TEST(a_stream_launches_them_in_order)
{
    const struct kops_argument to_b[] = {kops_arg_tensor(&b), kops_arg_tensor(&a), kops_arg_int(N)};
    const struct kops_argument to_c[] = {kops_arg_tensor(&c), kops_arg_tensor(&b), kops_arg_int(N)};
    const struct kops_argument back[] = {kops_arg_tensor(&b), kops_arg_tensor(&c), kops_arg_int(N)};
    kops_buffer *buffer = place(EXPORTED);

    assert_ok(kops_kernel_enqueue(twice, to_b, 3, NULL, stream, &error));
    assert_ok(kops_kernel_enqueue(twice, to_c, 3, NULL, stream, &error));
    assert_ok(kops_kernel_enqueue(twice, back, 3, NULL, stream, &error));
    assert_ok(kops_synchronize(client, stream, 0, &error));
    assert_holds(&b, 8);
    assert_holds(&c, 4);
    assert_ok(kops_batch_begin(client, stream, &error));
    assert_ok(kops_kernel_enqueue(twice, to_b, 3, NULL, stream, &error));
    for (int i = 0; i < 4; i++) {
        assert_ok(kops_kernel_enqueue(twice, to_c, 3, NULL, stream, &error));
        assert_ok(kops_kernel_enqueue(twice, back, 3, NULL, stream, &error));
    }
    assert_ok(kops_batch_end(client, stream, &error));
    finish(stream);
    assert_holds(&b, 512);
    assert_holds(&c, 256);

    /* An error comes with the next call, and names the kernel. */
    const struct kops_argument wrong[] = {kops_arg_tensor(&c), kops_arg_tensor(&b), kops_arg_int(N + 1)};
    assert_ok(kops_kernel_enqueue(twice, wrong, 3, NULL, stream, &error));
    assert_int_equal(kops_synchronize(client, stream, 0, &error), KOPS_ERR_SHAPE_MISMATCH);
    assert_non_null(strstr(error.message, "(custom_kernel)"));
    kops_buffer_release(buffer);
}

/* How many rows of the statistics have a time of the kernel in clients' own contexts. */
static unsigned timed_here(void)
{
    struct kops_stats *stats;
    unsigned n = 0;

    assert_ok(kops_stats_get(client, NULL, &stats, &error));
    for (const struct kops_stats_row *const *row = stats->rows; *row; row++) {
        if (strcmp((*row)->variant, "here") != 0)
            continue;
        assert_string_equal((*row)->op, "custom_kernel");
        assert_int_equal((*row)->n_shapes, 2);
        n += (*row)->exec_us.max > 0;
    }
    kops_stats_free(stats);
    return n;
}

TEST(statistics_have_launches_here)
{
    const struct kops_argument to_b[] = {kops_arg_tensor(&b), kops_arg_tensor(&a), kops_arg_int(N)};
    const struct kops_launch_options here = {.options = {.where = KOPS_WHERE_HERE}};
    kops_buffer *buffer = place(EXPORTED);
    const uint64_t before = launches_here(client);
    struct kops_result result;

    for (int i = 0; i < 100; i++) {
        assert_ok(kops_kernel_enqueue(twice, to_b, 3, &here, stream, &error));
        if (i == 2) /* the second one is timed, and its time is read when the next is to be */
            finish(stream);
    }
    finish(stream);
    assert_holds(&b, 2);
    assert_int_equal(launches_here(client), before + 100);
    assert_int_equal(timed_here(), 1);
    assert_ok(kops_kernel_launch(twice, to_b, 3, &here, &result, &error));
    assert_string_equal(result.timer, "events");
    assert_int_equal(launches_here(client), before + 101);
    kops_buffer_release(buffer);
}

/* The same kernel for the stand-in driver, which knows it by its name and its parameters' sizes. */
TEST(structures_go_by_value)
{
    static const char pairs[] = "struct pair { short low, high; };\n"
                                "extern \"C\" __global__ void custom_kernel(float *out, const float *in, pair n)\n"
                                "{\n"
                                "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                                "    if (i < n.low + 65536 * n.high)\n"
                                "        out[i] = 2 * in[i];\n"
                                "}\n";
    static const struct kops_param params[] = {{.name = "out", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32},
                                               {.name = "in", .kind = KOPS_PARAM_IN, .dtype = KOPS_F32},
                                               {.name = "n", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_U8, .lanes = 4}};
    const struct kops_source source = {.text = pairs};
    const struct kops_signature signature = {
        .entry = "custom_kernel", .params = params, .n_params = 3, .geometry = {.grid = {"8"}, .block = {"128"}}};
    const struct {
        int16_t low, high;
    } pair = {N, 0};
    struct kops_argument args[] = {kops_arg_tensor(&b), kops_arg_tensor(&a), kops_arg_bytes(&pair, sizeof(pair))};
    kops_buffer *buffer = place(OF_THE_GPU);
    kops_kernel *kernel;

    assert_ok(kops_kernel_compile(client, &source, &signature, &kernel, NULL, &error));
    assert_ok(kops_kernel_launch(kernel, args, 3, NULL, NULL, &error));
    assert_holds(&b, 2);
    args[2] = kops_arg_bytes(&pair, 3);
    assert_int_equal(kops_kernel_launch(kernel, args, 3, NULL, NULL, &error), KOPS_ERR_WRONG_TYPE);
    args[2] = kops_arg_int(N);
    assert_int_equal(kops_kernel_launch(kernel, args, 3, NULL, NULL, &error), KOPS_ERR_WRONG_TYPE);
    kops_kernel_free(kernel);
    kops_buffer_release(buffer);
}

ALL_TESTS_WITH(connect_and_compile, close_client)

/* Which calls are repeated when no reply came: those that do no harm twice. */
#include <sys/mman.h>
#include <unistd.h>

#include "scripted.h"

static const char *const with_programs[] = {"memfd", "sequence", "program", NULL};

enum { BYTES = 1 << 16, N = 256, STEP = N * 4 };

/* A daemon that hangs up at the first piece of work, and its client with memory. */
struct scene {
    struct scripted scripted;
    struct fake *fake;
    kops_client *client;
    kops_buffer *buffer, *alias, *other; /* `alias` is the same memory as `buffer` */
    struct kops_tensor t[4];             /* apart from each other, in `buffer` */
    struct kops_error error;
};

static int begin(void **state)
{
    struct scene *s = calloc(1, sizeof(*s));
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (!s || fd < 0 || ftruncate(fd, BYTES))
        return -1;
    fake_set_features(with_programs);
    s->scripted = (struct scripted)SCRIPTED(.script = "x");
    s->fake = fake_start(scripted_serve, &s->scripted);
    s->client = connect_to(s->fake);
    assert_ok(kops_buffer_register_memfd(s->client, fd, BYTES, KOPS_ACCESS_RW, &s->buffer, &s->error));
    assert_ok(kops_buffer_register_memfd(s->client, fd, BYTES, KOPS_ACCESS_RW, &s->alias, &s->error));
    assert_ok(kops_buffer_alloc_shared(s->client, BYTES, &s->other, &s->error));
    for (unsigned i = 0; i < 4; i++) {
        s->t[i] = kops_vector(s->buffer, KOPS_F32, N);
        s->t[i].offset = (uint64_t)i * STEP;
    }
    close(fd);
    *state = s;
    return 0;
}

static int end(void **state)
{
    struct scene *s = *state;

    kops_buffer_release(s->buffer);
    kops_buffer_release(s->alias);
    kops_buffer_release(s->other);
    kops_close(s->client);
    fake_stop(s->fake);
    fake_set_features(NULL);
    free(s);
    return 0;
}

/* The outcome of a call that the daemon's end hit: it came twice and went well, or once and is lost. */
static void expect(struct scene *s, enum kops_code code, bool repeated)
{
    struct scripted seen = scripted_look(&s->scripted);

    if (code != (repeated ? KOPS_OK : KOPS_ERR_CONNECTION_LOST))
        fail_msg("%s: %s", kops_code_name(code), s->error.message);
    if (!repeated)
        assert_non_null(strstr(s->error.message, "not repeated by itself"));
    assert_int_equal(seen.work, repeated ? 2 : 1);
}

static void apart(void **state)
{
    struct scene *s = *state;

    expect(s, kops_add(s->client, &s->t[0], &s->t[1], &s->t[2], NULL, NULL, &s->error), true);
}

static void other_memory(void **state)
{
    struct scene *s = *state;
    struct kops_tensor out = kops_vector(s->other, KOPS_F32, N);

    expect(s, kops_square(s->client, &s->t[0], &out, NULL, NULL, &s->error), true);
}

static void in_place(void **state)
{
    struct scene *s = *state;

    expect(s, kops_add(s->client, &s->t[0], &s->t[1], &s->t[1], NULL, NULL, &s->error), false);
}

/* The last bytes are those of the next one's first. */
static void partly_over_each_other(void **state)
{
    struct scene *s = *state;

    s->t[1].offset -= sizeof(float);
    expect(s, kops_square(s->client, &s->t[0], &s->t[1], NULL, NULL, &s->error), false);
}

static void the_same_file_twice(void **state)
{
    struct scene *s = *state;
    struct kops_tensor out = kops_vector(s->alias, KOPS_F32, N);

    expect(s, kops_square(s->client, &s->t[0], &out, NULL, NULL, &s->error), false);
}

static void strides_reach_further(void **state)
{
    struct scene *s = *state;

    s->t[0].has_strides = true;
    s->t[0].strides[0] = 2;
    expect(s, kops_square(s->client, &s->t[0], &s->t[1], NULL, NULL, &s->error), false);
}

static void repeated_rows_reach_less(void **state)
{
    struct scene *s = *state;

    s->t[0] = kops_matrix(s->buffer, KOPS_F32, N, N);
    s->t[0].has_strides = true;
    s->t[0].strides[0] = 0;
    s->t[0].strides[1] = 1;
    expect(s, kops_square(s->client, &s->t[0], &s->t[1], NULL, NULL, &s->error), true);
}

static void too_far_to_tell(void **state)
{
    struct scene *s = *state;

    s->t[0].shape[0] = INT64_MAX;
    expect(s, kops_square(s->client, &s->t[0], &s->t[1], NULL, NULL, &s->error), false);
}

static enum kops_code gemm(struct scene *s, struct kops_attr attr)
{
    const struct kops_request request = {
        .op = "gemm", .inputs = s->t, .n_inputs = 2, .outputs = &s->t[2], .n_outputs = 1, .attrs = &attr, .n_attrs = 1};

    return kops_run(s->client, &request, NULL, &s->error);
}

static void beta(void **state)
{
    expect(*state, gemm(*state, kops_attr_float("beta", 0.5)), false);
}

static void beta_as_an_integer(void **state)
{
    expect(*state, gemm(*state, kops_attr_int("beta", 1)), false);
}

static void beta_of_0(void **state)
{
    expect(*state, gemm(*state, kops_attr_float("beta", 0.0)), true);
}

/* ---- several ops ---- */

static const uint32_t places[] = {0, 1, 2, 3};

static enum kops_code run_steps(struct scene *s, const struct kops_step *steps, size_t n)
{
    const struct kops_sequence sequence = {s->t, 4, steps, n};

    return kops_sequence_run(s->client, &sequence, NULL, NULL, &s->error);
}

#define SQUARE(from, to)                                                                                               \
    {                                                                                                                  \
        .op = "square", .inputs = &places[from], .n_inputs = 1, .outputs = &places[to], .n_outputs = 1                 \
    }

static void sequence_apart(void **state)
{
    expect(*state, run_steps(*state, (struct kops_step[]){SQUARE(0, 1), SQUARE(2, 3)}, 2), true);
}

static void sequence_that_reads_what_it_writes(void **state)
{
    expect(*state, run_steps(*state, (struct kops_step[]){SQUARE(0, 1), SQUARE(1, 2)}, 2), false);
}

static void sequence_that_overwrites_an_input(void **state)
{
    expect(*state, run_steps(*state, (struct kops_step[]){SQUARE(0, 1), SQUARE(2, 0)}, 2), false);
}

static void sequence_that_updates(void **state)
{
    const struct kops_attr attr = kops_attr_float("beta", 1.0);

    expect(*state,
           run_steps(*state,
                     (struct kops_step[]){{.op = "gemm",
                                           .inputs = places,
                                           .n_inputs = 2,
                                           .outputs = &places[2],
                                           .n_outputs = 1,
                                           .attrs = &attr,
                                           .n_attrs = 1}},
                     1),
           false);
}

/* Defined anew on the next connection; what counts is the memory that it is bound to. */
static void run_program(struct scene *s, kops_buffer *out, uint64_t offset, bool repeated)
{
    const struct kops_step step = SQUARE(0, 1);
    const struct kops_sequence sequence = {s->t, 2, &step, 1};
    const struct kops_binding binding = {.tensor = 1, .buffer = out, .offset = offset};
    kops_program *program;

    s->scripted.method = "run_program";
    assert_ok(kops_program_define(s->client, &sequence, NULL, &program, &s->error));
    expect(s, kops_program_run(program, &binding, 1, NULL, NULL, &s->error), repeated);
    assert_int_equal(scripted_look(&s->scripted).defined, repeated ? 2 : 1);
    assert_ok(kops_program_run(program, NULL, 0, NULL, NULL, &s->error));
    kops_program_release(program);
}

static void program_apart(void **state)
{
    struct scene *s = *state;

    run_program(s, s->other, 0, true);
}

static void program_in_place(void **state)
{
    struct scene *s = *state;

    run_program(s, s->alias, 0, false);
}

/* ---- kernels of one's own ---- */

static void launch(struct scene *s, const char *script, enum kops_code code)
{
    const struct kops_source source = {.text = "kernel"};
    const struct kops_signature signature = {.entry = "entry"};
    kops_kernel *kernel;

    assert_ok(kops_kernel_compile(s->client, &source, &signature, &kernel, NULL, &s->error));
    s->scripted.script = script;
    assert_int_equal(kops_kernel_launch(kernel, NULL, 0, NULL, NULL, &s->error), code);
    if (code) {
        assert_non_null(strstr(s->error.message, "not repeated by itself"));
        assert_int_equal(scripted_look(&s->scripted).work, 1);
        assert_ok(kops_kernel_launch(kernel, NULL, 0, NULL, NULL, &s->error));
    }
    assert_int_equal(scripted_look(&s->scripted).work, 2);
    /* Compiled and declared anew where it is used next. */
    assert_int_equal(scripted_look(&s->scripted).compiled, 2);
    assert_int_equal(scripted_look(&s->scripted).defined, 2);
    kops_kernel_free(kernel);
}

static void launch_lost(void **state)
{
    launch(*state, "x", KOPS_ERR_CONNECTION_LOST);
}

static void launch_with_the_device(void **state)
{
    launch(*state, "d", KOPS_ERR_DEVICE_LOST);
}

static void launch_that_daemon_stays(void **state)
{
    launch(*state, "D", KOPS_ERR_DEVICE_LOST);
}

static void launch_notified(void **state)
{
    launch(*state, "n", KOPS_ERR_DEVICE_LOST);
}

/* It never ran. */
static void launch_refused(void **state)
{
    launch(*state, "S", KOPS_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(apart),
        TEST(other_memory),
        TEST(in_place),
        TEST(partly_over_each_other),
        TEST(the_same_file_twice),
        TEST(strides_reach_further),
        TEST(repeated_rows_reach_less),
        TEST(too_far_to_tell),
        TEST(beta),
        TEST(beta_as_an_integer),
        TEST(beta_of_0),
        TEST(sequence_apart),
        TEST(sequence_that_reads_what_it_writes),
        TEST(sequence_that_overwrites_an_input),
        TEST(sequence_that_updates),
        TEST(program_apart),
        TEST(program_in_place),
        TEST(launch_lost),
        TEST(launch_with_the_device),
        TEST(launch_that_daemon_stays),
        TEST(launch_notified),
        TEST(launch_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

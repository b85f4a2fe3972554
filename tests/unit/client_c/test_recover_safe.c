/* Which calls are repeated when no reply came: those that do no harm twice. */
#include <sys/mman.h>
#include <unistd.h>

#include "scene.h"

enum { BYTES = 1 << 16, N = 256 };

static struct scene *s;
static kops_buffer *buffer, *alias, *other; /* `alias` is the same memory as `buffer` */
static struct kops_tensor t[4];             /* apart from each other, in `buffer` */

static int begin(void **state)
{
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    must(fd >= 0 && !ftruncate(fd, BYTES));
    s = scene_start(NULL);
    assert_ok(kops_buffer_register_memfd(s->client, fd, BYTES, KOPS_ACCESS_RW, &buffer, NULL));
    assert_ok(kops_buffer_register_memfd(s->client, fd, BYTES, KOPS_ACCESS_RW, &alias, NULL));
    other = scene_memory(s, BYTES);
    vectors_in(buffer, N, 4, t);
    return close(fd);
}

static int end(void **state)
{
    kops_buffer_release(buffer);
    kops_buffer_release(alias);
    scene_stop(s);
    return 0;
}

/* The outcome of a call that the daemon's end hit: it came twice and went well, or once and is lost. */
static void expect(const char *name, enum kops_code code, bool repeated)
{
    if (code != (repeated ? KOPS_OK : KOPS_ERR_CONNECTION_LOST) ||
        (!repeated && !strstr(s->error.message, "not repeated by itself")) || scene_seen(s).work != (repeated ? 2 : 1))
        fail_msg("%s: %s after %u: %s", name, kops_code_name(code), scene_seen(s).work, s->error.message);
}

static enum kops_code square(struct kops_tensor out)
{
    return kops_square(s->client, &t[0], &out, NULL, NULL, &s->error);
}

static enum kops_code add_into(unsigned out)
{
    return kops_add(s->client, &t[0], &t[1], &t[out], NULL, NULL, &s->error);
}

static enum kops_code gemm(struct kops_attr attr)
{
    const struct kops_request request = {
        .op = "gemm", .inputs = t, .n_inputs = 2, .outputs = &t[2], .n_outputs = 1, .attrs = &attr, .n_attrs = 1};

    return kops_run(s->client, &request, NULL, &s->error);
}

static void repeat_rows(void)
{
    t[0] = kops_matrix(buffer, KOPS_F32, N, N);
    t[0].has_strides = true;
    t[0].strides[0] = 0;
    t[0].strides[1] = 1;
}

static const uint32_t places[] = {0, 1, 2, 3};

static struct kops_step square_step(unsigned from, unsigned to)
{
    return (struct kops_step){
        .op = "square", .inputs = &places[from], .n_inputs = 1, .outputs = &places[to], .n_outputs = 1};
}

static enum kops_code run_steps(const struct kops_step *steps, size_t n)
{
    const struct kops_sequence sequence = {t, 4, steps, n};

    return kops_sequence_run(s->client, &sequence, NULL, NULL, &s->error);
}

/* The second step reads `from` and writes `to`. */
static enum kops_code two_steps(unsigned from, unsigned to)
{
    return run_steps((struct kops_step[]){square_step(0, 1), square_step(from, to)}, 2);
}

#define WITH_MEMORY(name) TEST_WITH(name, begin, end)

WITH_MEMORY(only_what_does_no_harm_twice_is_repeated)
{
    const struct kops_attr beta = kops_attr_float("beta", 1.0);
    const struct kops_step update = {.op = "gemm",
                                     .inputs = places,
                                     .n_inputs = 2,
                                     .outputs = &places[2],
                                     .n_outputs = 1,
                                     .attrs = &beta,
                                     .n_attrs = 1};

#define CALL(repeated, call, change)                                                                                   \
    do {                                                                                                               \
        vectors_in(buffer, N, 4, t);                                                                                   \
        change;                                                                                                        \
        scene_script(s, "x", NULL);                                                                                    \
        expect(#call ", " #change, call, repeated);                                                                    \
    } while (0)
    CALL(true, add_into(2), );
    CALL(true, square(kops_vector(other, KOPS_F32, N)), );
    CALL(false, add_into(1), );
    CALL(false, square(t[1]), t[1].offset -= sizeof(float)); /* the last bytes are the next one's first */
    CALL(false, square(kops_vector(alias, KOPS_F32, N)), );  /* the same file */
    CALL(false, square(t[1]), (t[0].has_strides = true, t[0].strides[0] = 2));
    CALL(true, square(t[1]), repeat_rows()); /* which reach less far than they are many */
    CALL(false, square(t[1]), t[0].shape[0] = INT64_MAX);
    CALL(false, gemm(kops_attr_float("beta", 0.5)), );
    CALL(false, gemm(kops_attr_int("beta", 1)), );
    CALL(true, gemm(kops_attr_float("beta", 0.0)), );
    CALL(true, two_steps(2, 3), );
    CALL(false, two_steps(1, 2), );
    CALL(false, two_steps(2, 0), );
    CALL(false, run_steps(&update, 1), );
#undef CALL
}

/* Defined anew on the next connection; what counts is the memory that it is bound to. */
WITH_MEMORY(a_program_is_as_safe_as_its_bindings)
{
    const struct kops_step step = square_step(0, 1);
    const struct kops_sequence sequence = {t, 2, &step, 1};

    for (int repeated = 0; repeated < 2; repeated++) {
        const struct kops_binding binding = {.tensor = 1, .buffer = repeated ? other : alias};
        kops_program *program;
        unsigned defined;

        assert_ok(kops_program_define(s->client, &sequence, NULL, &program, &s->error));
        defined = scene_seen(s).defined;
        scene_script(s, "x", NULL);
        expect(repeated ? "bound to other memory" : "bound to its own memory",
               kops_program_run(program, &binding, 1, NULL, NULL, &s->error), repeated);
        assert_int_equal(scene_seen(s).defined, defined + (unsigned)repeated);
        assert_ok(kops_program_run(program, NULL, 0, NULL, NULL, &s->error));
        kops_program_release(program);
    }
}

WITH_MEMORY(a_kernel_is_not_repeated_unless_it_never_ran)
{
    static const struct {
        const char *script;
        enum kops_code code;
    } cases[] = {{"x", KOPS_ERR_CONNECTION_LOST},
                 {"d", KOPS_ERR_DEVICE_LOST},
                 {"D", KOPS_ERR_DEVICE_LOST},
                 {"n", KOPS_ERR_DEVICE_LOST},
                 {"S", KOPS_OK}};
    const struct kops_source source = {.text = "kernel"};
    const struct kops_signature signature = {.entry = "entry"};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        kops_kernel *kernel;

        print_message("\"%s\"\n", cases[i].script);
        assert_ok(kops_kernel_compile(s->client, &source, &signature, &kernel, NULL, &s->error));
        scene_script(s, cases[i].script, NULL);
        assert_int_equal(kops_kernel_launch(kernel, NULL, 0, NULL, NULL, &s->error), cases[i].code);
        if (cases[i].code) {
            assert_non_null(strstr(s->error.message, "not repeated by itself"));
            assert_int_equal(scene_seen(s).work, 1);
            assert_ok(kops_kernel_launch(kernel, NULL, 0, NULL, NULL, &s->error));
        }
        assert_int_equal(scene_seen(s).work, 2);
        kops_kernel_free(kernel);
    }
}

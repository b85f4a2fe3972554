/* Which calls are repeated when no reply came: those that do no harm twice. */
#include <sys/mman.h>
#include <unistd.h>

#include "scene.h"

enum { BYTES = 1 << 16, N = 256 };

/* Memory of a client. */
struct memory {
    struct scene *s;
    kops_buffer *buffer, *alias, *other; /* `alias` is the same memory as `buffer` */
    struct kops_tensor t[4];             /* apart from each other, in `buffer` */
};

static int begin(void **state)
{
    struct memory *m = calloc(1, sizeof(*m));
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (!m || fd < 0 || ftruncate(fd, BYTES))
        return -1;
    m->s = scene_start(NULL);
    assert_ok(kops_buffer_register_memfd(m->s->client, fd, BYTES, KOPS_ACCESS_RW, &m->buffer, NULL));
    assert_ok(kops_buffer_register_memfd(m->s->client, fd, BYTES, KOPS_ACCESS_RW, &m->alias, NULL));
    m->other = scene_memory(m->s, BYTES);
    vectors_in(m->buffer, N, 4, m->t);
    close(fd);
    *state = m;
    return 0;
}

static int end(void **state)
{
    struct memory *m = *state;

    kops_buffer_release(m->buffer);
    kops_buffer_release(m->alias);
    scene_stop(m->s);
    free(m);
    return 0;
}

/* The outcome of a call that the daemon's end hit: it came twice and went well, or once and is lost. */
static void expect(const char *name, struct memory *m, enum kops_code code, bool repeated)
{
    if (code != (repeated ? KOPS_OK : KOPS_ERR_CONNECTION_LOST) ||
        (!repeated && !strstr(m->s->error.message, "not repeated by itself")) ||
        scene_seen(m->s).work != (repeated ? 2 : 1))
        fail_msg("%s: %s after %u: %s", name, kops_code_name(code), scene_seen(m->s).work, m->s->error.message);
}

static enum kops_code square(struct memory *m, struct kops_tensor out)
{
    return kops_square(m->s->client, &m->t[0], &out, NULL, NULL, &m->s->error);
}

static enum kops_code add_into(struct memory *m, unsigned out)
{
    return kops_add(m->s->client, &m->t[0], &m->t[1], &m->t[out], NULL, NULL, &m->s->error);
}

static enum kops_code gemm(struct memory *m, struct kops_attr attr)
{
    const struct kops_request request = {
        .op = "gemm", .inputs = m->t, .n_inputs = 2, .outputs = &m->t[2], .n_outputs = 1, .attrs = &attr, .n_attrs = 1};

    return kops_run(m->s->client, &request, NULL, &m->s->error);
}

static void repeat_rows(struct memory *m)
{
    m->t[0] = kops_matrix(m->buffer, KOPS_F32, N, N);
    m->t[0].has_strides = true;
    m->t[0].strides[0] = 0;
    m->t[0].strides[1] = 1;
}

static const uint32_t places[] = {0, 1, 2, 3};

static struct kops_step square_step(unsigned from, unsigned to)
{
    return (struct kops_step){
        .op = "square", .inputs = &places[from], .n_inputs = 1, .outputs = &places[to], .n_outputs = 1};
}

static enum kops_code run_steps(struct memory *m, const struct kops_step *steps, size_t n)
{
    const struct kops_sequence sequence = {m->t, 4, steps, n};

    return kops_sequence_run(m->s->client, &sequence, NULL, NULL, &m->s->error);
}

/* The second step reads `from` and writes `to`. */
static enum kops_code two_steps(struct memory *m, unsigned from, unsigned to)
{
    return run_steps(m, (struct kops_step[]){square_step(0, 1), square_step(from, to)}, 2);
}

#define WITH_MEMORY(name) TEST_OF(struct memory *m, name, begin, end)

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
        vectors_in(m->buffer, N, 4, m->t);                                                                             \
        change;                                                                                                        \
        scene_script(m->s, "x", NULL);                                                                                 \
        expect(#call ", " #change, m, call, repeated);                                                                 \
    } while (0)
    CALL(true, add_into(m, 2), );
    CALL(true, square(m, kops_vector(m->other, KOPS_F32, N)), );
    CALL(false, add_into(m, 1), );
    CALL(false, square(m, m->t[1]), m->t[1].offset -= sizeof(float)); /* the last bytes are the next one's first */
    CALL(false, square(m, kops_vector(m->alias, KOPS_F32, N)), );     /* the same file */
    CALL(false, square(m, m->t[1]), (m->t[0].has_strides = true, m->t[0].strides[0] = 2));
    CALL(true, square(m, m->t[1]), repeat_rows(m)); /* which reach less far than they are many */
    CALL(false, square(m, m->t[1]), m->t[0].shape[0] = INT64_MAX);
    CALL(false, gemm(m, kops_attr_float("beta", 0.5)), );
    CALL(false, gemm(m, kops_attr_int("beta", 1)), );
    CALL(true, gemm(m, kops_attr_float("beta", 0.0)), );
    CALL(true, two_steps(m, 2, 3), );
    CALL(false, two_steps(m, 1, 2), );
    CALL(false, two_steps(m, 2, 0), );
    CALL(false, run_steps(m, &update, 1), );
#undef CALL
}

/* Defined anew on the next connection; what counts is the memory that it is bound to. */
WITH_MEMORY(a_program_is_as_safe_as_its_bindings)
{
    const struct kops_step step = square_step(0, 1);
    const struct kops_sequence sequence = {m->t, 2, &step, 1};

    for (int repeated = 0; repeated < 2; repeated++) {
        const struct kops_binding binding = {.tensor = 1, .buffer = repeated ? m->other : m->alias};
        kops_program *program;
        unsigned defined;

        assert_ok(kops_program_define(m->s->client, &sequence, NULL, &program, &m->s->error));
        defined = scene_seen(m->s).defined;
        scene_script(m->s, "x", NULL);
        expect(repeated ? "bound to other memory" : "bound to its own memory", m,
               kops_program_run(program, &binding, 1, NULL, NULL, &m->s->error), repeated);
        assert_int_equal(scene_seen(m->s).defined, defined + (unsigned)repeated);
        assert_ok(kops_program_run(program, NULL, 0, NULL, NULL, &m->s->error));
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
        const enum kops_code code = cases[i].code;
        struct scripted before, after;
        kops_kernel *kernel;

        print_message("\"%s\"\n", cases[i].script);
        before = scene_seen(m->s);
        assert_ok(kops_kernel_compile(m->s->client, &source, &signature, &kernel, NULL, &m->s->error));
        scene_script(m->s, cases[i].script, NULL);
        assert_int_equal(kops_kernel_launch(kernel, NULL, 0, NULL, NULL, &m->s->error), code);
        if (code) {
            assert_non_null(strstr(m->s->error.message, "not repeated by itself"));
            assert_int_equal(scene_seen(m->s).work, 1);
            assert_ok(kops_kernel_launch(kernel, NULL, 0, NULL, NULL, &m->s->error));
        }
        after = scene_seen(m->s);
        assert_int_equal(after.work, 2);
        /* Compiled and declared anew where it is used next. */
        assert_int_equal(after.compiled, before.compiled + 2);
        assert_int_equal(after.defined, before.defined + 2);
        kops_kernel_free(kernel);
    }
}

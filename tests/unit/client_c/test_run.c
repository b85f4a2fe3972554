/* Requests as the daemon sees them, results as the caller gets them, memory on both sides. */
#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "c_types_vectors.h"
#include "scene.h"

SCENE(only_what_is_said_is_sent)
{
    const struct kops_options options = {.device = "0",
                                         .variant = "blocked",
                                         .stream = 3,
                                         .no_timing = true,
                                         .exclusive = true,
                                         .warmup = 1,
                                         .repeat = 7};
    struct kops_gemm_params params = KOPS_GEMM_INIT;
    struct kops_tensor a, b, c, none = kops_vector(NULL, KOPS_F32, 0), out = none;
    kops_buffer *b1 = scene_memory(s, 4096), *b2 = scene_memory(s, 4096);

    b = kops_matrix(b1, KOPS_F32, 4, 4);
    assert_ok(kops_square(s->client, &b, &b, NULL, NULL, &s->error));
    scene_asked(s, "{op: 'square', in: [{buffer: 1, shape: [4, 4], dtype: 'f32'}],"
                   " out: [{buffer: 1, shape: [4, 4], dtype: 'f32'}]}");

    a = kops_matrix(b1, KOPS_F64, 3, 5);
    a.offset = 24;
    a.has_strides = true;
    a.strides[0] = 1;
    a.strides[1] = 3;
    b = kops_matrix(b1, KOPS_F64, 3, 4);
    c = kops_matrix(b2, KOPS_F64, 5, 4);
    params.trans_a = true;
    params.alpha = 0.5;
    assert_ok(kops_gemm(s->client, &a, &b, &c, &params, &options, NULL, &s->error));
    scene_asked(s, "{op: 'gemm', in: [{buffer: 1, offset: 24, shape: [3, 5], strides: [1, 3], dtype: 'f64'},"
                   " {buffer: 1, shape: [3, 4], dtype: 'f64'}],"
                   " out: [{buffer: 2, shape: [5, 4], dtype: 'f64'}],"
                   " attrs: {trans_a: true, alpha: 0.5, variant: 'blocked'},"
                   " device: 0, stream: 3, timing: false, exclusive: true, warmup: 1, repeat: 7}");

    /* Strides of 0 are strides. The daemon judges what is negative, and says so by its key. */
    none.has_strides = true;
    for (int i = 0; i < 2; i++) {
        none.strides[0] = -i;
        assert_ok(kops_square(s->client, &none, &out, NULL, NULL, &s->error));
        assert_non_null(strstr(scene_seen(s).asked, i ? "strides: [-1]" : "strides: [0]"));
    }
}

SCENE(results_are_read)
{
    struct kops_result result;
    double samples[3] = {0, 0, -1};

    tagged_run(&s->t, "x");
    s->t.request.options.samples = samples;
    s->t.request.options.samples_room = 2;
    assert_ok(kops_run(s->client, &s->t.request, &result, &s->error));
    assert_true(result.host_us == 12.5);
    assert_true(result.total_us == 20);
    assert_true(isnan(result.gpu_us) && isnan(result.map_us) && isnan(result.median_us)); /* absent, not 0 */
    assert_int_equal(result.n_samples, 3); /* more than there was room for */
    assert_true(samples[0] == 1 && samples[1] == 2 && samples[2] == -1);
    assert_string_equal(result.device, "host");
    assert_string_equal(result.variant, "simple");
    assert_int_equal(s->error.code, KOPS_OK);
    assert_false(result.exclusive);
    scene_answer(s, "run", "{timings: {total_us: 2, wall_us: 1}, exclusive: true, device: 'host', variant: 'v'}");
    assert_ok(kops_run(s->client, &s->t.request, &result, &s->error));
    assert_true(result.exclusive && result.wall_us == 1);
}

SCENE(errors_are_passed_on)
{
    int64_t number = 0;

    scene_script(s, "f", NULL);
    assert_int_equal(scene_run(s), KOPS_ERR_SHAPE_MISMATCH);
    assert_int_equal(s->error.code, KOPS_ERR_SHAPE_MISMATCH);
    assert_string_equal(s->error.message, "in[0] has rank 3");
    assert_string_equal(kops_error_text(&s->error, "key"), "in[0].shape");
    assert_true(kops_error_number(&s->error, "needed", &number));
    assert_int_equal(number, 8);
    assert_true(kops_error_number(&s->error, "least", &number));
    assert_int_equal(number, -4);
    assert_false(kops_error_number(&s->error, "key", &number));
    assert_null(kops_error_text(&s->error, "absent"));
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(s->error.code, KOPS_OK);
}

SCENE(arguments_are_checked)
{
    static char too_long[200001]; /* the library's own limit is the daemon's */
    struct kops_tensor many[KOPS_MAX_OPERANDS + 1];
    struct scene *other = scene_start(NULL);
    kops_buffer *foreign = scene_memory(other, 64);

    for (int i = 0; i <= KOPS_MAX_OPERANDS; i++)
        many[i] = kops_vector(NULL, KOPS_F32, 0);
    memset(too_long, 'x', sizeof(too_long) - 1);
#define REFUSED(change)                                                                                                \
    do {                                                                                                               \
        tagged_run(&s->t, "x");                                                                                        \
        change;                                                                                                        \
        if (kops_run(s->client, &s->t.request, NULL, &s->error) != KOPS_ERR_BAD_ARGUMENT)                              \
            fail_msg("%s: %s", #change, s->error.message);                                                             \
    } while (0)
    REFUSED(s->t.tensors[0].rank = KOPS_MAX_RANK + 1);
    REFUSED(s->t.tensors[0].dtype = (enum kops_dtype)99);
    REFUSED(s->t.attr.value.text = NULL);
    REFUSED(s->t.attr.value.text = too_long);
    REFUSED(s->t.request.options.reserved[0] = 1);
    REFUSED((s->t.request.inputs = many, s->t.request.n_inputs = KOPS_MAX_OPERANDS));
    REFUSED(s->t.tensors[1].buffer = foreign);
#undef REFUSED
    assert_non_null(strstr(s->error.message, "outputs[0]"));
    assert_int_equal(scene_seen(s).work, 0);
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(kops_buffer_alloc_shared(other->client, 0, &foreign, &s->error), KOPS_ERR_BAD_ARGUMENT);
    scene_stop(other);
}

/* ---- memory ---- */

/* What came with the last registration. */
struct registered {
    int seals;
    unsigned char first_byte;
};

static void look_at_memory(void *context, const struct fake_request *r)
{
    struct registered *m = context;
    unsigned char *p;

    if (strcmp(r->method, "register") != 0)
        return;
    m->seals = fcntl(r->fds[0], F_GET_SEALS);
    p = mmap(NULL, 1, PROT_READ, MAP_SHARED, r->fds[0], 0);
    must(p != MAP_FAILED);
    m->first_byte = *p;
    munmap(p, 1);
}

SCENE(shared_memory_is_shared)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    struct registered seen = {0};
    kops_buffer *b, *again;
    unsigned char byte = 0;
    int fd = memfd_create("mine", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    s->d.context = &seen;
    s->d.look_at = look_at_memory;
    scene_script(s, "", "register");
    assert_ok(kops_buffer_alloc_shared(s->client, 100, &b, &s->error));
    assert_int_equal(seen.seals & seals, seals);
    assert_int_equal(kops_buffer_size(b), 100);
    assert_null(kops_buffer_device(b));
    assert_int_equal(kops_buffer_base_offset(b), 0);
    assert_int_equal(((unsigned char *)kops_buffer_data(b))[99], 0);

    assert_int_equal(write(fd, "\x2a", 1), 1);
    assert_ok(kops_buffer_register_memfd(s->client, fd, 1, KOPS_ACCESS_R, &again, &s->error));
    close(fd); /* the buffer has its own */
    assert_non_null(strstr(scene_seen(s).asked, "access: 'r'"));
    assert_int_equal(seen.first_byte, 0x2a);
    assert_ok(kops_buffer_read(again, 0, &byte, 1, &s->error));
    assert_int_equal(byte, 0x2a);
    assert_int_equal(kops_buffer_write(again, 0, &byte, 1, &s->error), KOPS_ERR_READ_ONLY);
    assert_ok(kops_buffer_write(b, 99, &byte, 1, &s->error));
    assert_int_equal(((unsigned char *)kops_buffer_data(b))[99], 0x2a);
    assert_int_equal(kops_buffer_write(b, 100, &byte, 1, &s->error), KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(kops_buffer_read(b, UINT64_MAX, &byte, 1, &s->error), KOPS_ERR_BAD_ARGUMENT);
    kops_buffer_release(b);
    kops_buffer_release(again);
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_string_equal(scene_seen(s).released, "{buffer: 1}{buffer: 2}");
}

/* Pages are charged to whoever touches them first: to this process, before the daemon writes there. */
SCENE(shared_memory_is_taken_at_once)
{
    const size_t size = (size_t)4 << 20;
    kops_buffer *b = scene_memory(s, size);
    unsigned char present[1024];

    assert_int_equal(mincore(kops_buffer_data(b), size, present), 0);
    for (size_t i = 0; i < size / (size_t)sysconf(_SC_PAGESIZE); i++)
        assert_true(present[i] & 1);
}

SCENE(more_than_there_is)
{
    static const uint64_t sizes[] = {UINT64_C(1) << 42, INT64_MAX, UINT64_MAX};
    int64_t asked, available;
    kops_buffer *b;

    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(kops_buffer_alloc_shared(s->client, sizes[i], &b, &s->error), KOPS_ERR_OUT_OF_MEMORY);
        assert_non_null(strstr(s->error.message, "of shared memory were asked for, and"));
        assert_true(kops_error_number(&s->error, "asked", &asked));
        assert_true(kops_error_number(&s->error, "available", &available));
        assert_true(available < asked && available > 0);
        assert_non_null(kops_error_text(&s->error, "limit"));
        assert_int_equal(kops_buffer_alloc(s->client, sizes[i], NULL, &b, &s->error), KOPS_ERR_OUT_OF_MEMORY);
    }
    assert_string_equal(scene_seen(s).last, "hello"); /* the daemon has heard nothing of it */
}

static unsigned open_fds(void)
{
    unsigned n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Memory of the host is this process's own, also where it is asked for by device. */
SCENE(buffers_leave_nothing_behind)
{
    const unsigned before = open_fds();
    uint64_t pointer;

    for (int i = 0; i < 50; i++) {
        kops_buffer *a, *b;

        assert_ok(kops_buffer_alloc_shared(s->client, 4096, &a, &s->error));
        assert_ok(kops_buffer_alloc(s->client, 5000, NULL, &b, &s->error));
        assert_string_equal(scene_seen(s).last, "register");
        assert_int_equal(kops_buffer_size(b), 5000);
        memset(kops_buffer_data(b), 7, 5000);
        assert_int_equal(kops_buffer_map_cuda(b, &pointer, &s->error), KOPS_ERR_BAD_ARGUMENT);
        assert_null(kops_buffer_release(a));
        assert_null(kops_buffer_release(b));
    }
    assert_ok(kops_ping(s->client, 0, &s->error)); /* the daemon has closed its copies */
    assert_int_equal(open_fds(), before);
}

TEST(buffers_outlive_their_client)
{
    struct scene *s = scene_start(NULL);
    kops_buffer *b;

    assert_ok(kops_buffer_alloc_shared(s->client, 4096, &b, &s->error));
    scene_stop(s);
    memset(kops_buffer_data(b), 1, 4096);
    kops_buffer_release(b);
}

/* The vectors that the Python client runs, too. */
TEST(types_of_c_are_dtypes)
{
    for (size_t i = 0; i < sizeof(c_types) / sizeof(c_types[0]); i++) {
        enum kops_dtype dtype;
        const char *name = kops_dtype_parse(c_types[i].type, &dtype) ? kops_dtype_name(dtype) : NULL;

        if (!name != !c_types[i].dtype || (name && strcmp(name, c_types[i].dtype) != 0))
            fail_msg("`%s` is %s, not %s", c_types[i].type, name ? name : "no type",
                     c_types[i].dtype ? c_types[i].dtype : "no type");
    }
}

TEST(dtypes_and_counts)
{
    enum kops_dtype dtype;
    struct kops_tensor t = kops_tensor_of(NULL, KOPS_BF16, 3, (const int64_t[]){2, 0, INT64_MAX});

    assert_int_equal(kops_dtype_size(KOPS_BF16), 2);
    assert_int_equal(kops_dtype_size((enum kops_dtype)77), 0);
    assert_string_equal(kops_dtype_name(KOPS_F64), "f64");
    assert_true(kops_dtype_parse("f16", &dtype) && dtype == KOPS_F16);
    assert_false(kops_dtype_parse("f1", &dtype));
    assert_int_equal(kops_tensor_count(&t), 0);
    t.shape[1] = 2;
    assert_int_equal(kops_tensor_count(&t), -1);
    t.rank = 0;
    assert_int_equal(kops_tensor_count(&t), 1);
    assert_string_equal(kops_code_name(KOPS_ERR_OUT_OF_BOUNDS), "out_of_bounds");
    assert_string_equal(kops_code_name(KOPS_OK), "ok");
}

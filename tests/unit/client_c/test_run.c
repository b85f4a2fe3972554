/* Requests as the daemon sees them, results as the caller gets them, memory on both sides. */
#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test.h"

/* What the daemon saw. Read by the test after the call has returned: the reply orders the two. */
struct seen {
    char method[32];
    bool key_offset, key_strides, key_attrs, key_stream, key_repeat, timing;
    uint64_t buffers[3], offset, device_index;
    int64_t shape[2], strides[2];
    bool trans_a;
    double alpha;
    bool variant;
    int seals;
    unsigned char first_byte;
    unsigned releases;
    uint64_t released;
    bool read_only, negative_stride;
};

static void see_run(struct seen *s, const msgpack_object *params)
{
    const msgpack_object *in = fake_param(params, "in"), *out = fake_param(params, "out");
    const msgpack_object *attrs = fake_param(params, "attrs"), *first = &in->via.array.ptr[0];
    const msgpack_object *strides = fake_param(first, "strides"), *device = fake_param(params, "device");

    s->key_attrs = attrs != NULL;
    s->key_offset = fake_param(first, "offset") != NULL;
    s->key_strides = strides != NULL;
    s->key_stream = fake_param(params, "stream") != NULL;
    s->key_repeat = fake_param(params, "repeat") != NULL;
    s->timing = !fake_param(params, "timing");
    if (s->key_offset)
        s->offset = fake_param(first, "offset")->via.u64;
    for (uint32_t i = 0; i < in->via.array.size && i < 2; i++)
        if (fake_param(&in->via.array.ptr[i], "buffer"))
            s->buffers[i] = fake_param(&in->via.array.ptr[i], "buffer")->via.u64;
    if (fake_param(&out->via.array.ptr[0], "buffer"))
        s->buffers[2] = fake_param(&out->via.array.ptr[0], "buffer")->via.u64;
    for (uint32_t i = 0; i < 2 && i < fake_param(first, "shape")->via.array.size; i++) {
        s->shape[i] = fake_param(first, "shape")->via.array.ptr[i].via.i64;
        if (strides) {
            s->strides[i] = strides->via.array.ptr[i].via.i64;
            s->negative_stride |= strides->via.array.ptr[i].type == MSGPACK_OBJECT_NEGATIVE_INTEGER;
        }
    }
    if (attrs) {
        s->trans_a = fake_param(attrs, "trans_a") && fake_param(attrs, "trans_a")->via.boolean;
        s->alpha = fake_param(attrs, "alpha") ? fake_param(attrs, "alpha")->via.f64 : 1.0;
        s->variant = fake_is(fake_param(attrs, "variant"), "blocked");
    }
    if (device && device->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
        s->device_index = device->via.u64 + 1;
}

static void serve_seeing(struct fake_connection *c, void *context)
{
    struct seen *s = context;
    struct fake_request r;

    while (fake_next(c, &r)) {
        snprintf(s->method, sizeof(s->method), "%s", r.method);
        if (!strcmp(r.method, "run"))
            see_run(s, &r.params);
        if (!strcmp(r.method, "register")) {
            unsigned char *p = mmap(NULL, 1, PROT_READ, MAP_SHARED, r.fds[0], 0);

            s->seals = fcntl(r.fds[0], F_GET_SEALS);
            s->read_only = fake_is(fake_param(&r.params, "access"), "r");
            if (p != MAP_FAILED) {
                s->first_byte = *p;
                munmap(p, 1);
            }
        }
        if (!strcmp(r.method, "release")) {
            s->releases++;
            s->released = fake_param(&r.params, "buffer")->via.u64;
        }
        if (!strcmp(r.method, "run") && fake_is(fake_param(&r.params, "op"), "fails"))
            fake_reply_error(c, r.msgid, "shape_mismatch", "in[0] has rank 3");
        else
            fake_answer(c, &r);
    }
}

struct fixture {
    struct seen seen;
    struct fake *fake;
    kops_client *client;
    struct kops_error error;
};

static int setup(void **state)
{
    struct fixture *x = calloc(1, sizeof(*x));

    x->fake = fake_start(serve_seeing, &x->seen);
    x->client = connect_to(x->fake);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *x = *state;

    kops_close(x->client);
    fake_stop(x->fake);
    free(x);
    return 0;
}

static void defaults_are_left_out(void **state)
{
    struct fixture *x = *state;
    struct kops_tensor t;
    kops_buffer *b;

    assert_ok(kops_buffer_alloc_shared(x->client, 64, &b, &x->error));
    t = kops_matrix(b, KOPS_F32, 4, 4);
    assert_ok(kops_square(x->client, &t, &t, NULL, NULL, &x->error));
    assert_false(x->seen.key_offset || x->seen.key_strides || x->seen.key_attrs || x->seen.key_stream ||
                 x->seen.key_repeat);
    assert_true(x->seen.timing);
    assert_int_equal(x->seen.shape[1], 4);
    kops_buffer_release(b);
}

static void everything_arrives(void **state)
{
    struct fixture *x = *state;
    kops_buffer *b1, *b2;
    struct kops_tensor a, b, c;
    struct kops_gemm_params params = KOPS_GEMM_INIT;
    struct kops_options options = {
        .device = "0", .variant = "blocked", .stream = 3, .no_timing = true, .warmup = 1, .repeat = 7};

    assert_ok(kops_buffer_alloc_shared(x->client, 4096, &b1, &x->error));
    assert_ok(kops_buffer_alloc_shared(x->client, 4096, &b2, &x->error));
    a = kops_matrix(b1, KOPS_F64, 3, 5);
    a.offset = 24;
    a.has_strides = true;
    a.strides[0] = 1;
    a.strides[1] = 3;
    b = kops_matrix(b1, KOPS_F64, 3, 4);
    c = kops_matrix(b2, KOPS_F64, 5, 4);
    params.trans_a = true;
    params.alpha = 0.5;
    assert_ok(kops_gemm(x->client, &a, &b, &c, &params, &options, NULL, &x->error));
    assert_int_equal(x->seen.offset, 24);
    assert_int_equal(x->seen.strides[0], 1);
    assert_int_equal(x->seen.strides[1], 3);
    assert_int_equal(x->seen.buffers[0], x->seen.buffers[1]);
    assert_int_not_equal(x->seen.buffers[0], x->seen.buffers[2]);
    assert_true(x->seen.trans_a && x->seen.variant && x->seen.key_stream && x->seen.key_repeat);
    assert_true(x->seen.alpha == 0.5);
    assert_false(x->seen.timing);
    assert_int_equal(x->seen.device_index, 1); /* "0" travels as a number */
    kops_buffer_release(b1);
    kops_buffer_release(b2);
}

static void zero_strides_are_strides(void **state)
{
    struct fixture *x = *state;
    struct kops_tensor a = kops_vector(NULL, KOPS_F32, 0), out = a;

    a.has_strides = true;
    assert_ok(kops_square(x->client, &a, &out, NULL, NULL, &x->error));
    assert_true(x->seen.key_strides);
    assert_int_equal(x->seen.strides[0], 0);
    /* The daemon judges what is negative, and says so by its key. */
    a.strides[0] = -1;
    assert_ok(kops_square(x->client, &a, &out, NULL, NULL, &x->error));
    assert_true(x->seen.negative_stride);
}

static void results_are_read(void **state)
{
    struct fixture *x = *state;
    struct kops_result result;
    double samples[2] = {0, 0};
    struct tagged t;

    tagged_run(&t, "x");
    t.request.options.samples = samples;
    t.request.options.samples_room = 2;
    assert_ok(kops_run(x->client, &t.request, &result, &x->error));
    assert_true(result.host_us == 12.5);
    assert_true(result.total_us == 20);
    assert_true(isnan(result.gpu_us) && isnan(result.map_us) && isnan(result.median_us)); /* absent, not 0 */
    assert_int_equal(result.n_samples, 3); /* more than there was room for */
    assert_true(samples[0] == 1 && samples[1] == 2);
    assert_string_equal(result.device, "host");
    assert_string_equal(result.variant, "simple");
    assert_int_equal(x->error.code, KOPS_OK);
}

static void errors_are_passed_on(void **state)
{
    struct fixture *x = *state;
    int64_t number = 0;
    struct tagged t;

    tagged_run(&t, "x");
    t.request.op = "fails";
    assert_int_equal(kops_run(x->client, &t.request, NULL, &x->error), KOPS_ERR_SHAPE_MISMATCH);
    assert_int_equal(x->error.code, KOPS_ERR_SHAPE_MISMATCH);
    assert_string_equal(x->error.message, "in[0] has rank 3");
    assert_string_equal(kops_error_text(&x->error, "key"), "in[0].shape");
    assert_true(kops_error_number(&x->error, "needed", &number));
    assert_int_equal(number, 8);
    assert_true(kops_error_number(&x->error, "least", &number));
    assert_int_equal(number, -4);
    assert_false(kops_error_number(&x->error, "key", &number));
    assert_null(kops_error_text(&x->error, "absent"));
    assert_ok(kops_ping(x->client, 0, &x->error));
    assert_int_equal(x->error.code, KOPS_OK);
}

static void arguments_are_checked(void **state)
{
    struct fixture *x = *state;
    struct kops_tensor many[KOPS_MAX_OPERANDS + 1];
    kops_client *other = connect_to(x->fake);
    kops_buffer *foreign;
    struct tagged t;

    tagged_run(&t, "x");
    t.tensors[0].rank = KOPS_MAX_RANK + 1;
    assert_int_equal(kops_run(x->client, &t.request, NULL, &x->error), KOPS_ERR_BAD_ARGUMENT);
    tagged_run(&t, "x");
    t.tensors[0].dtype = (enum kops_dtype)99;
    assert_int_equal(kops_run(x->client, &t.request, NULL, &x->error), KOPS_ERR_BAD_ARGUMENT);
    tagged_run(&t, "x");
    t.attr.value.text = NULL;
    assert_int_equal(kops_run(x->client, &t.request, NULL, &x->error), KOPS_ERR_BAD_ARGUMENT);
    tagged_run(&t, "x");
    t.request.options.reserved[0] = 1;
    assert_int_equal(kops_run(x->client, &t.request, NULL, &x->error), KOPS_ERR_BAD_ARGUMENT);
    for (int i = 0; i <= KOPS_MAX_OPERANDS; i++)
        many[i] = kops_vector(NULL, KOPS_F32, 0);
    tagged_run(&t, "x");
    t.request.inputs = many;
    t.request.n_inputs = KOPS_MAX_OPERANDS;
    assert_int_equal(kops_run(x->client, &t.request, NULL, &x->error), KOPS_ERR_BAD_ARGUMENT);
    assert_ok(kops_buffer_alloc_shared(other, 64, &foreign, &x->error));
    tagged_run(&t, "x");
    t.tensors[1].buffer = foreign;
    assert_int_equal(kops_run(x->client, &t.request, NULL, &x->error), KOPS_ERR_BAD_ARGUMENT);
    assert_non_null(strstr(x->error.message, "outputs[0]"));
    assert_int_equal(kops_buffer_alloc_shared(other, 0, &foreign, &x->error), KOPS_ERR_BAD_ARGUMENT);
    kops_buffer_release(foreign);
    kops_close(other);
}

/* The library's own limit is the daemon's. */
static void a_request_may_be_too_long(void **state)
{
    struct fixture *x = *state;
    char *text = malloc(200001);
    struct tagged t;

    memset(text, 'x', 200000);
    text[200000] = 0;
    assert_int_equal(kops_run(x->client, tagged_run(&t, text), NULL, &x->error), KOPS_ERR_BAD_ARGUMENT);
    assert_ok(kops_ping(x->client, 0, &x->error));
    free(text);
}

/* ---- memory ---- */

static void shared_memory_is_shared(void **state)
{
    struct fixture *x = *state;
    kops_buffer *b, *again;
    unsigned char byte = 0;
    int fd = memfd_create("mine", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_ok(kops_buffer_alloc_shared(x->client, 100, &b, &x->error));
    assert_int_equal(x->seen.seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                     F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    assert_int_equal(kops_buffer_size(b), 100);
    assert_null(kops_buffer_device(b));
    assert_int_equal(kops_buffer_base_offset(b), 0);
    assert_int_equal(((unsigned char *)kops_buffer_data(b))[99], 0);

    assert_int_equal(write(fd, "\x2a", 1), 1);
    assert_ok(kops_buffer_register_memfd(x->client, fd, 1, KOPS_ACCESS_R, &again, &x->error));
    close(fd); /* the buffer has its own */
    assert_true(x->seen.read_only);
    assert_int_equal(x->seen.first_byte, 0x2a);
    assert_ok(kops_buffer_read(again, 0, &byte, 1, &x->error));
    assert_int_equal(byte, 0x2a);
    assert_int_equal(kops_buffer_write(again, 0, &byte, 1, &x->error), KOPS_ERR_READ_ONLY);
    assert_ok(kops_buffer_write(b, 99, &byte, 1, &x->error));
    assert_int_equal(((unsigned char *)kops_buffer_data(b))[99], 0x2a);
    assert_int_equal(kops_buffer_write(b, 100, &byte, 1, &x->error), KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(kops_buffer_read(b, UINT64_MAX, &byte, 1, &x->error), KOPS_ERR_BAD_ARGUMENT);
    kops_buffer_release(b);
    kops_buffer_release(again);
    assert_ok(kops_ping(x->client, 0, &x->error));
    assert_int_equal(x->seen.releases, 2);
}

/* Memory of the host is this process's own, also where it is asked for by device. */
static void alloc_on_the_host(void **state)
{
    struct fixture *x = *state;
    kops_buffer *b;
    uint64_t pointer;

    assert_ok(kops_buffer_alloc(x->client, 5000, NULL, &b, &x->error));
    assert_string_equal(x->seen.method, "register");
    assert_int_equal(kops_buffer_size(b), 5000);
    memset(kops_buffer_data(b), 7, 5000);
    assert_int_equal(kops_buffer_map_cuda(b, &pointer, &x->error), KOPS_ERR_BAD_ARGUMENT);
    kops_buffer_release(b);
}

/* Pages are charged to whoever touches them first: to this process, before the daemon writes there. */
static void shared_memory_is_taken_at_once(void **state)
{
    const size_t size = (size_t)4 << 20;
    struct fixture *x = *state;
    unsigned char present[1024];
    kops_buffer *b;

    assert_ok(kops_buffer_alloc_shared(x->client, size, &b, &x->error));
    assert_int_equal(mincore(kops_buffer_data(b), size, present), 0);
    for (size_t i = 0; i < size / (size_t)sysconf(_SC_PAGESIZE); i++)
        assert_true(present[i] & 1);
    kops_buffer_release(b);
}

static void more_than_there_is(void **state)
{
    static const uint64_t sizes[] = {UINT64_C(1) << 42, INT64_MAX, UINT64_MAX};
    struct fixture *x = *state;
    int64_t asked, available;
    kops_buffer *b;

    x->seen.method[0] = 0;
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(kops_buffer_alloc_shared(x->client, sizes[i], &b, &x->error), KOPS_ERR_OUT_OF_MEMORY);
        assert_non_null(strstr(x->error.message, "of shared memory were asked for, and"));
        assert_true(kops_error_number(&x->error, "asked", &asked));
        assert_true(kops_error_number(&x->error, "available", &available));
        assert_true(available < asked && available > 0);
        assert_non_null(kops_error_text(&x->error, "limit"));
        assert_int_equal(kops_buffer_alloc(x->client, sizes[i], NULL, &b, &x->error), KOPS_ERR_OUT_OF_MEMORY);
    }
    assert_string_equal(x->seen.method, ""); /* the daemon has heard nothing of it */
}

static unsigned open_fds(void)
{
    unsigned n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void buffers_leave_nothing_behind(void **state)
{
    struct fixture *x = *state;
    unsigned before;

    /* Its own client, so that nothing else has a descriptor. */
    before = open_fds();
    for (int i = 0; i < 50; i++) {
        kops_buffer *a, *b;

        assert_ok(kops_buffer_alloc_shared(x->client, 4096, &a, &x->error));
        assert_ok(kops_buffer_alloc(x->client, 4096, NULL, &b, &x->error));
        assert_null(kops_buffer_release(a));
        assert_null(kops_buffer_release(b));
    }
    assert_ok(kops_ping(x->client, 0, &x->error)); /* the daemon has closed its copies */
    assert_int_equal(open_fds(), before);
}

static void buffers_outlive_their_client(void **state)
{
    struct fixture *x = *state;
    kops_client *client = connect_to(x->fake);
    kops_buffer *b;

    assert_ok(kops_buffer_alloc_shared(client, 4096, &b, &x->error));
    kops_close(client);
    memset(kops_buffer_data(b), 1, 4096);
    kops_buffer_release(b);
}

static void dtypes_and_counts(void **state)
{
    enum kops_dtype dtype;
    struct kops_tensor t = kops_tensor_of(NULL, KOPS_BF16, 3, (const int64_t[]){2, 0, INT64_MAX});

    (void)state;
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

#define test(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(defaults_are_left_out),
        test(everything_arrives),
        test(zero_strides_are_strides),
        test(results_are_read),
        test(errors_are_passed_on),
        test(arguments_are_checked),
        test(a_request_may_be_too_long),
        test(shared_memory_is_shared),
        test(alloc_on_the_host),
        test(shared_memory_is_taken_at_once),
        test(more_than_there_is),
        test(buffers_leave_nothing_behind),
        test(buffers_outlive_their_client),
        cmocka_unit_test(dtypes_and_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Users' kernels: loading code, what a launch gets, and jobs of them in every form that ops have. */
#include "support.h"

enum { N = 1000, BYTES = N * sizeof(float), SHARED_MAX = 232448 };

static struct backend_code *code;
static const struct backend_function *doubled, *sum, *unknown;

static int setup_kernels(void **state)
{
    setup(state);
    code = load_code();
    doubled = load_function(code, "custom_kernel");
    sum = load_function(code, "sum_dynamic_shared");
    unknown = load_function(code, "unknown_kernel");
    begin_tests();
    return 0;
}

static const char *detail(const struct error *e, const char *key)
{
    for (unsigned i = 0; i < e->n_details; i++)
        if (strcmp(e->details[i].key, key) == 0)
            return e->details[i].text;
    return "";
}

/* ---- code ---- */

CUDA_TEST(test_functions_tell_what_they_need)
{
    assert_int_equal(unknown->static_shared, 400);
    assert_int_equal(unknown->max_threads, 256);
    assert_true(unknown->registers > 0);
}

CUDA_TEST(test_other_code_is_refused_by_name)
{
    struct backend_code *other;
    unsigned char *image;
    struct error e;
    size_t size;

    image = read_file(KOPS_TEST_CUBIN_OLD, &size);
    assert_int_equal(backend->code_load(device, DOMAIN_COMMON, image, size, &other, &e), -1);
    assert_int_equal(e.code, ERROR_UNSUPPORTED);
    assert_string_equal(detail(&e, "arch"), "sm_80");
    assert_string_equal(detail(&e, "device_arch"), "sm_90");
    assert_non_null(strstr(e.message, "sm_80"));
    assert_non_null(strstr(e.message, "sm_90"));
    free(image);

    image = read_file(KOPS_TEST_CUBIN_ONE_ARCH, &size);
    assert_int_equal(backend->code_load(device, DOMAIN_COMMON, image, size, &other, &e), 0);
    backend->code_unload(device, other);
    free(image);
}

/* The driver is not told an image's size: what is cut off anywhere must not reach it. */
CUDA_TEST(test_code_that_is_cut_off_never_reaches_the_driver)
{
    static const char text[64] = "// no cubin, however long: __global__ void f() {}";
    struct backend_code *other;
    unsigned char *image;
    uint64_t before;
    size_t size;

    image = read_file(KOPS_TEST_CUBIN, &size);
    before = calls("cuModuleLoadData");
    for (size_t cut = 0; cut < size; cut += cut < 128 ? 1 : 61) {
        unsigned char *part = malloc(cut ? cut : 1);

        memcpy(part, image, cut);
        MUST_FAIL(backend->code_load(device, DOMAIN_COMMON, part, cut, &other, &e), ERROR_INVALID_ARGUMENT, "");
        free(part);
    }
    MUST_FAIL(backend->code_load(device, DOMAIN_COMMON, text, sizeof(text), &other, &e), ERROR_INVALID_ARGUMENT, "");
    assert_int_equal(calls("cuModuleLoadData"), before);

    inject("cuModuleLoadData", 200 /* CUDA_ERROR_INVALID_IMAGE */, false);
    MUST_FAIL(backend->code_load(device, DOMAIN_COMMON, image, size, &other, &e), ERROR_INVALID_ARGUMENT, "");
    inject("cuModuleLoadData", 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
    MUST_FAIL(backend->code_load(device, DOMAIN_COMMON, image, size, &other, &e), ERROR_OUT_OF_MEMORY, "");
    assert_false(device->lost);
    free(image);
}

/* ---- jobs in device memory ---- */

CUDA_TEST(test_dynamic_shared_memory_up_to_all_of_it)
{
    struct backend_memory *in = device_memory(BYTES), *out = device_memory(BYTES);
    struct test_job t;
    float expected = 0;

    fill(in, N, 3);
    for (unsigned i = 0; i < N; i++)
        expected += value(i, 3);
    KERNEL_JOB(&t, sum, 256, OUT(out, 1), IN(in, N), INT(N));
    t.step.plan.kernel.shared_bytes = SHARED_MAX;
    run_job(stream_open(), &t);
    assert_true(floats(out)[0] == expected);
}

/* ---- shared host memory ---- */

/* What another job writes between the elements of a strided output meanwhile is not undone. */
CUDA_TEST(test_gaps_of_an_output_are_not_written)
{
    struct backend_memory *in = host_memory(BYTES), *out = host_memory(BYTES);
    struct arg target = OUT(out, 100);
    struct test_job t;

    fill(in, N, 9);
    fill(out, N, 10);
    target.sparse = true;
    KERNEL_JOB(&t, doubled, 256, target, IN(in, 40), INT(40));
    gate_close(STANDIN_GATE_kernel);
    start_job(stream_open(), &t);
    wait_at_gate(STANDIN_GATE_kernel, 1);
    floats(out)[70] = 1234;
    gate_open(STANDIN_GATE_kernel);
    finish(&t);
    assert_false(t.job.failed);
    for (unsigned i = 0; i < N; i++)
        assert_true(floats(out)[i] == (i < 40 ? 2 * value(i, 9) : i == 70 ? 1234 : value(i, 10)));
}

CUDA_TEST(test_overlapping_tensors_overlap_on_the_device)
{
    struct backend_memory *m = host_memory(BYTES);
    struct arg in = IN(m, 10), out = OUT(m, 10);
    struct test_job t;

    for (unsigned i = 0; i < N; i++)
        floats(m)[i] = 1;
    in.offset = 20 * sizeof(float);
    out.offset = 21 * sizeof(float);
    KERNEL_JOB(&t, doubled, 256, out, in, INT(10));
    run_job(stream_open(), &t);
    for (unsigned i = 0; i < N; i++) /* the stand-in goes from the first to the last */
        assert_true(floats(m)[i] == (i > 20 && i < 31 ? (float)(1 << (i - 20)) : 1));
}

ALL_TESTS_WITH(setup_kernels, teardown)

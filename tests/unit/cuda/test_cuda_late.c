/* cuBLASLt, which a process does without until it is needed. */
#include "support.h"

#include <dlfcn.h>

enum { BYTES = 1 << 12 };

static struct backend_stream *stream;
static struct backend_memory *memory[3];

static bool is_loaded(void)
{
    void *library = dlopen(KOPS_FAKE_BLASLT, RTLD_NOW | RTLD_NOLOAD);

    if (library)
        dlclose(library);
    return library != NULL;
}

static void open_late(const char *path)
{
    test_config.cuda_blaslt_late = true;
    describe_devices(path, &device, 1);
    MUST(cuda_backend.activate(device, &e));
    stream = stream_open();
    for (unsigned i = 0; i < 3; i++)
        memory[i] = device_memory(BYTES);
}

static void close_device(void)
{
    close_opened(NULL);
    backend->close(device);
    assert_int_equal(counter(STANDIN_COUNTER_misuse), 0);
}

/* A product of n x n matrices; returns whether it had to be prepared. */
static bool run_gemm(int64_t n, const char *variant)
{
    struct view views[] = {MATRIX(memory[0], n, n), MATRIX(memory[1], n, n), MATRIX(memory[2], n, n)};
    struct test_job t;
    bool prepared;

    make_gemm(&t, views, 1.0, 0.0);
    prepared = needs_prepare(&t);
    run_job(stream, &t);
    assert_string_equal(t.step.variant_used, variant);
    return prepared;
}

/* Without it gemms go on, and are not prepared for each time. */
TEST(test_a_library_that_is_not_there)
{
    open_late("/nonexistent/libcublasLt.so");
    assert_true(run_gemm(5, "tiled"));
    assert_false(run_gemm(5, "tiled"));
    assert_false(run_gemm(6, "tiled"));
    close_device();
}

TEST(test_the_first_gemm_loads_the_library)
{
    struct test_job t;

    open_late(KOPS_FAKE_BLASLT);
    assert_string_equal(backend->variants(device, op_get(OP_GEMM), DTYPE_F32)[0], "cublaslt");
    make_job(&t, OP_SQUARE, (struct view[]){VECTOR(memory[0], 64), VECTOR(memory[2], 64)});
    assert_false(needs_prepare(&t));
    run_job(stream, &t);
    assert_false(is_loaded());
    assert_true(run_gemm(5, "cublaslt"));
    assert_true(is_loaded());
    assert_false(run_gemm(5, "cublaslt"));
    close_device();
}

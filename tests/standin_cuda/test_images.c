/* Images of code for one architecture: what the stand-in reads in them, refuses, and computes of their kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#define ok(call) assert_int_equal((call), CUDA_SUCCESS)

static CUmodule module;
static unsigned char *image;
static size_t image_size;

static unsigned char *read_file(const char *path, size_t *ret_size)
{
    FILE *f = fopen(path, "rb");
    unsigned char *bytes;
    long size;

    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    bytes = malloc((size_t)size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)size, f), size);
    fclose(f);
    *ret_size = (size_t)size;
    return bytes;
}

static int setup(void **state)
{
    CUcontext context;

    (void)state;
    ok(cuInit(0));
    ok(cuDevicePrimaryCtxRetain(&context, 0));
    ok(cuCtxSetCurrent(context));
    image = read_file(KOPS_TEST_CUBIN, &image_size);
    ok(cuModuleLoadData(&module, image));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ok(cuModuleUnload(module));
    free(image);
    return 0;
}

static CUfunction function(const char *name)
{
    CUfunction f;

    ok(cuModuleGetFunction(&f, module, name));
    return f;
}

static int attribute(const char *name, CUfunction_attribute which)
{
    int value;

    ok(cuFuncGetAttribute(&value, which, function(name)));
    return value;
}

static CUdeviceptr upload(const void *data, size_t size)
{
    CUdeviceptr a;

    ok(cuMemAlloc(&a, size));
    ok(cuMemcpyHtoD(a, data, size));
    return a;
}

static void attributes_come_from_the_image(void **state)
{
    CUfunction f;

    (void)state;
    assert_int_equal(attribute("unknown_kernel", CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 256);
    assert_int_equal(attribute("unknown_kernel", CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 400);
    assert_in_range(attribute("unknown_kernel", CU_FUNC_ATTRIBUTE_NUM_REGS), 4, 64);
    assert_int_equal(attribute("add2_kernel", CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
    assert_int_equal(attribute("add2_kernel", CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 0);
    assert_int_equal(cuModuleGetFunction(&f, module, "no_kernel"), CUDA_ERROR_NOT_FOUND);
    assert_int_equal(cuModuleGetFunction(&f, module, "kops_add_f32_vector"), CUDA_ERROR_NOT_FOUND);
    /* What is static counts, too. */
    assert_int_equal(
        cuFuncSetAttribute(function("unknown_kernel"), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448 - 399),
        CUDA_ERROR_INVALID_VALUE);
    ok(cuFuncSetAttribute(function("unknown_kernel"), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448 - 400));
}

static void other_images_are_refused(void **state)
{
    unsigned char *bytes;
    CUmodule other;
    size_t size;

    (void)state;
    bytes = read_file(KOPS_TEST_CUBIN_OLD, &size);
    assert_int_equal(cuModuleLoadData(&other, bytes), CUDA_ERROR_NO_BINARY_FOR_GPU);
    free(bytes);
    assert_int_equal(cuModuleLoadData(&other, "garbage"), CUDA_ERROR_INVALID_IMAGE);
}

/* Every byte of the headers and of the names and records, one at a time: refused or not, it must not crash. */
static void broken_images_do_no_harm(void **state)
{
    unsigned char *copy = malloc(image_size);
    CUmodule other;

    (void)state;
    assert_non_null(copy);
    memcpy(copy, image, image_size);
    for (size_t i = 4; i < image_size; i++) {
        copy[i] ^= 0xff;
        if (cuModuleLoadData(&other, copy) == CUDA_SUCCESS)
            ok(cuModuleUnload(other));
        copy[i] ^= 0xff;
    }
    free(copy);
}

static void a_grid_that_is_too_small_leaves_the_rest(void **state)
{
    float a[600], b[600], got[600];
    CUdeviceptr da, db, dc;
    int n = 600;
    void *params[] = {&dc, &da, &db, &n};

    (void)state;
    for (int i = 0; i < 600; i++) {
        a[i] = (float)i;
        b[i] = 1;
        got[i] = -1;
    }
    da = upload(a, sizeof(a));
    db = upload(b, sizeof(b));
    dc = upload(got, sizeof(got));
    ok(cuLaunchKernel(function("_Z10vector_addPfPKfS1_i"), 2, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
    ok(cuMemcpyDtoH(got, dc, sizeof(got)));
    for (int i = 0; i < 600; i++)
        assert_true(got[i] == (i < 512 ? a[i] + 1 : -1));
    /* This one steps by the whole grid. */
    ok(cuLaunchKernel(function("add2_kernel"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    ok(cuMemcpyDtoH(got, dc, sizeof(got)));
    for (int i = 0; i < 600; i++)
        assert_true(got[i] == a[i] + 1);
}

static void parameters_as_a_buffer(void **state)
{
    const float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, 0, 0, 1, 1, 1};
    float got[4];
    struct {
        CUdeviceptr c, a, b;
        int n, m, k;
    } params = {.n = 2, .m = 2, .k = 3};
    size_t size = 36;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &params, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};

    (void)state;
    params.a = upload(a, sizeof(a));
    params.b = upload(b, sizeof(b));
    params.c = upload(got, sizeof(got));
    ok(cuLaunchKernel(function("gemm_kernel"), 1, 1, 1, 16, 16, 1, 0, NULL, NULL, extra));
    ok(cuMemcpyDtoH(got, params.c, sizeof(got)));
    assert_true(got[0] == 4 && got[1] == 5 && got[2] == 10 && got[3] == 11);
    size = 32;
    assert_int_equal(cuLaunchKernel(function("gemm_kernel"), 1, 1, 1, 16, 16, 1, 0, NULL, NULL, extra),
                     CUDA_ERROR_INVALID_VALUE);
}

static void histograms_and_sums(void **state)
{
    unsigned char data[1000];
    uint32_t bins[256] = {0};
    float in[100], out[2] = {0};
    CUdeviceptr d_data, d_bins, d_in, d_out;
    int n = 1000, few = 100;

    (void)state;
    for (int i = 0; i < 1000; i++)
        data[i] = (unsigned char)(i % 7);
    for (int i = 0; i < 100; i++)
        in[i] = 1;
    d_data = upload(data, sizeof(data));
    d_bins = upload(bins, sizeof(bins));
    d_in = upload(in, sizeof(in));
    d_out = upload(out, sizeof(out));
    ok(cuLaunchKernel(function("histogram_kernel"), 1, 1, 1, 64, 1, 1, 0, NULL, (void *[]){&d_bins, &d_data, &n},
                      NULL));
    ok(cuMemcpyDtoH(bins, d_bins, sizeof(bins)));
    for (int i = 0; i < 256; i++)
        assert_int_equal(bins[i], i < 7 ? 142 + (i < 6) : 0);
    ok(cuLaunchKernel(function("sum_dynamic_shared"), 2, 1, 1, 32, 1, 1, 128, NULL, (void *[]){&d_out, &d_in, &few},
                      NULL));
    ok(cuMemcpyDtoH(out, d_out, sizeof(out)));
    assert_true(out[0] + out[1] == 100 && out[0] > out[1]);
}

static void launches_that_cannot_be(void **state)
{
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {2, 1, 1}};
    CUlaunchConfig config = {.gridDimX = 3,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 32,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .attrs = &cluster,
                             .numAttrs = 1};
    unsigned char bytes[8] = {0};
    CUdeviceptr p = upload(bytes, sizeof(bytes));
    double z = 0;
    int n = 0;

    (void)state;
    assert_int_equal(
        cuLaunchKernel(function("unknown_kernel"), 1, 1, 1, 257, 1, 1, 0, NULL, (void *[]){bytes, bytes, &z, &p}, NULL),
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    assert_int_equal(
        cuLaunchKernel(function("unknown_kernel"), 1, 1, 1, 256, 1, 1, 0, NULL, (void *[]){bytes, bytes, &z, &p}, NULL),
        CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(cuLaunchKernelEx(&config, function("custom_kernel"), (void *[]){&p, &p, &n}, NULL),
                     CUDA_ERROR_INVALID_CLUSTER_SIZE);
    config.gridDimX = 4;
    ok(cuLaunchKernelEx(&config, function("custom_kernel"), (void *[]){&p, &p, &n}, NULL));
    config.gridDimX = cluster.value.clusterDim.x = 16;
    assert_int_equal(cuLaunchKernelEx(&config, function("custom_kernel"), (void *[]){&p, &p, &n}, NULL),
                     CUDA_ERROR_INVALID_CLUSTER_SIZE);
    ok(cuFuncSetAttribute(function("custom_kernel"), CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    ok(cuLaunchKernelEx(&config, function("custom_kernel"), (void *[]){&p, &p, &n}, NULL));
    ok(cuCtxSynchronize());
}

/* Memory that is too small for what the kernel does is a stray access. Breaks the context: the last one. */
static void strays_break_the_context(void **state)
{
    CUdeviceptr p;
    int n = 1 << 20;

    (void)state;
    ok(cuMemAlloc(&p, 4096));
    ok(cuLaunchKernel(function("custom_kernel"), 4096, 1, 1, 256, 1, 1, 0, NULL, (void *[]){&p, &p, &n}, NULL));
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attributes_come_from_the_image), cmocka_unit_test(other_images_are_refused),
        cmocka_unit_test(broken_images_do_no_harm),       cmocka_unit_test(a_grid_that_is_too_small_leaves_the_rest),
        cmocka_unit_test(parameters_as_a_buffer),         cmocka_unit_test(histograms_and_sums),
        cmocka_unit_test(launches_that_cannot_be),
    };
    const struct CMUnitTest last[] = {cmocka_unit_test(strays_break_the_context)};

    return cmocka_run_group_tests(tests, setup, teardown) | cmocka_run_group_tests(last, setup, NULL);
}

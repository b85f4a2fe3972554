/* Launches that the stand-in driver refuses, and accesses that break a context. */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/ops/params.h"
#include "test_support.h"

struct refused {
    const char *name;
    unsigned grid_y, threads, shared, cluster, blocks;
    CUresult answer;
};

static CUresult launch(CUfunction function, const struct refused *l, void **params)
{
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {l->cluster, 1, 1}};
    CUlaunchConfig config = {.gridDimX = l->blocks,
                             .gridDimY = l->grid_y,
                             .gridDimZ = 1,
                             .blockDimX = l->threads,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .sharedMemBytes = l->shared,
                             .attrs = &cluster,
                             .numAttrs = l->cluster ? 1 : 0};

    return cuLaunchKernelEx(&config, function, params, NULL);
}

static void our_launches(void)
{
    static const struct refused launches[] = {
        {"kops_add_f32_vector", 1, 32, 0, 0, 0, CUDA_ERROR_INVALID_VALUE},
        {"kops_add_f32_vector", 1, 1025, 0, 0, 1, CUDA_ERROR_INVALID_VALUE},
        {"kops_add_f32_vector", 70000, 32, 0, 0, 1, CUDA_ERROR_INVALID_VALUE},
        {"kops_add_f32_vector", 1, 32, 50000, 0, 1, CUDA_ERROR_INVALID_VALUE},
    };
    struct cuda_ops_vector p = {0};

    for (size_t i = 0; i < sizeof(launches) / sizeof(*launches); i++)
        assert_int_equal(launch(kernel(launches[i].name), &launches[i], (void *[]){&p}), launches[i].answer);
    assert_int_equal(
        cuFuncSetAttribute(kernel("kops_add_f32_vector"), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 300000),
        CUDA_ERROR_INVALID_VALUE);
}

static CUmodule users_code(const char *path)
{
    static unsigned char image[1 << 20];
    CUmodule module;
    FILE *f = fopen(path, "rb");

    assert_non_null(f);
    assert_true(fread(image, 1, sizeof(image), f) > 0);
    fclose(f);
    return cuModuleLoadData(&module, image) == CUDA_SUCCESS ? module : NULL;
}

static void users_launches(void)
{
    static const struct refused launches[] = {
        {"unknown_kernel", 1, 257, 0, 0, 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES},
        {"unknown_kernel", 1, 256, 0, 0, 1, CUDA_ERROR_NOT_SUPPORTED},
        {"custom_kernel", 1, 32, 0, 2, 3, CUDA_ERROR_INVALID_CLUSTER_SIZE},
        {"custom_kernel", 1, 32, 0, 2, 4, CUDA_SUCCESS},
        {"custom_kernel", 1, 32, 0, 16, 16, CUDA_ERROR_INVALID_CLUSTER_SIZE},
    };
    CUmodule module = users_code(KOPS_TEST_CUBIN);
    CUdeviceptr a = new_floats(1);
    unsigned char bytes[8] = {0};
    CUfunction function;
    double z = 0;
    int n = 0;

    assert_null(users_code(KOPS_TEST_CUBIN_OLD));
    for (size_t i = 0; i < sizeof(launches) / sizeof(*launches); i++) {
        ok(cuModuleGetFunction(&function, module, launches[i].name));
        assert_int_equal(launch(function, &launches[i],
                                *launches[i].name == 'u' ? (void *[]){bytes, bytes, &z, &a} : (void *[]){&a, &a, &n}),
                         launches[i].answer);
    }
    /* Memory that is too small for what the kernel does is a stray access. */
    n = 1 << 20;
    ok(cuLaunchKernel(function, 4096, 1, 1, 256, 1, 1, 0, NULL, (void *[]){&a, &a, &n}, NULL));
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* A width that does not divide an address would be a misaligned access, and a wrong end of tiles move other bytes. */
static void parameters_that_a_device_would_fault_at(void)
{
    CUdeviceptr a = new_floats(1);
    struct cuda_ops_vector vector = {.out = a + 4, .a = a + 4, .count = 7, .a_step = 1, .head = 2};
    struct cuda_ops_move move = {.count = 1, .tiles = 1};
    const struct refused shape = {.grid_y = 1, .threads = 32, .blocks = 1};

    assert_int_equal(launch(kernel("kops_square_f32_vector"), &shape, (void *[]){&vector}), CUDA_ERROR_INVALID_VALUE);
    vector.head = 3;
    ok(launch(kernel("kops_square_f32_vector"), &shape, (void *[]){&vector}));
    move.pieces[0] = (struct cuda_ops_move_piece){.from = a + 2, .to = a + 22, .units = 5, .width = 4, .tiles_end = 1};
    assert_int_equal(launch(kernel("kops_move"), &shape, (void *[]){&move}), CUDA_ERROR_INVALID_VALUE);
    move.pieces[0].width = 2;
    move.pieces[0].tiles_end = 2;
    assert_int_equal(launch(kernel("kops_move"), &shape, (void *[]){&move}), CUDA_ERROR_INVALID_VALUE);
    move.pieces[0].tiles_end = 1;
    ok(launch(kernel("kops_move"), &shape, (void *[]){&move}));
    ok(cuCtxSynchronize());
}

static void a_broken_context_stays_broken(void)
{
    CUdeviceptr a = new_floats(3), b;
    CUcontext context;

    launch_square(a, 17, NULL);
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuMemAlloc(&b, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuMemFree(a), CUDA_ERROR_ILLEGAL_ADDRESS);
    ok(cuDevicePrimaryCtxRelease(0));
    ok(cuDevicePrimaryCtxRetain(&context, 0));
    ok(cuCtxSetCurrent(context));
    assert_int_equal(cuMemAlloc(&b, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(COUNTER(sticky), 1);
}

static const struct driver_test tests[] = {
    DRIVER_TEST(our_launches),
    DRIVER_TEST(users_launches),
    DRIVER_TEST(parameters_that_a_device_would_fault_at),
    DRIVER_TEST(a_broken_context_stays_broken),
};

int main(int argc, char **argv)
{
    return run_driver_tests(argc, argv, tests, sizeof(tests) / sizeof(*tests));
}

/* What the stand-in's kernels compute: conversions exactly, kernels on small cases against sums written out here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "kernels/cuda/ops/params.h"
#include "standin.h"

#define ok(call) assert_int_equal((call), CUDA_SUCCESS)

static CUmodule module;

static int setup(void **state)
{
    CUcontext context;

    (void)state;
    ok(cuInit(0));
    ok(cuDevicePrimaryCtxRetain(&context, 0));
    ok(cuCtxSetCurrent(context));
    ok(cuModuleLoadData(&module, "\x50\xed\x55\xba a fat binary"));
    return 0;
}

static void run(const char *name, void *params)
{
    void *all[] = {params};
    CUfunction function;

    ok(cuModuleGetFunction(&function, module, name));
    ok(cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, NULL, all, NULL));
    ok(cuCtxSynchronize());
}

static CUdeviceptr upload(const void *data, size_t size)
{
    CUdeviceptr a;

    ok(cuMemAlloc(&a, size));
    ok(cuMemcpyHtoD(a, data, size));
    return a;
}

/* ---- conversions ---- */

static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 0x7c00; bits++) {
        float value = half_to_float((uint16_t)bits), next = half_to_float((uint16_t)(bits + 1));
        float middle = bits == 0x7bff ? 65520.0f : value + (next - value) / 2;

        assert_int_equal(float_to_half(value), bits);
        assert_int_equal(float_to_half(-value), bits | 0x8000);
        assert_int_equal(float_to_half(middle), bits & 1 ? bits + 1 : bits);
        assert_int_equal(float_to_half(nextafterf(middle, 0)), bits);
        assert_int_equal(float_to_half(nextafterf(middle, INFINITY)), bits + 1);
    }
    assert_int_equal(float_to_half(INFINITY), 0x7c00);
    assert_true(isinf(half_to_float(0xfc00)) && isnan(half_to_float(0x7c01)));
    assert_true(isnan(half_to_float(float_to_half(NAN))));
    assert_true(half_to_float(1) == 0x1p-24f && half_to_float(0x3c00) == 1 && half_to_float(0x7bff) == 65504);
}

static void bfloats_round_to_nearest_even(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 0x7f80; bits++) {
        float value = bfloat_to_float((uint16_t)bits);
        uint32_t middle_bits = bits << 16 | 0x8000;
        float middle;

        memcpy(&middle, &middle_bits, sizeof(middle));
        assert_int_equal(float_to_bfloat(value), bits);
        assert_int_equal(float_to_bfloat(middle), bits & 1 ? bits + 1 : bits);
        assert_int_equal(float_to_bfloat(nextafterf(middle, 0)), bits);
        assert_int_equal(float_to_bfloat(nextafterf(middle, INFINITY)), bits + 1);
    }
    assert_true(isnan(bfloat_to_float(float_to_bfloat(NAN))));
}

/* ---- kernels ---- */

static void vector_adds_a_scalar(void **state)
{
    const double a[5] = {1, 2, 3, 4, 5}, b = 10;
    double got[5];
    CUdeviceptr da = upload(a, sizeof(a)), db = upload(&b, sizeof(b));
    struct cuda_ops_vector p = {.out = da, .a = da, .b = db, .count = 5, .a_step = 1, .b_step = 0};

    (void)state;
    run("kops_add_f64_vector", &p);
    ok(cuMemcpyDtoH(got, da, sizeof(got)));
    for (unsigned i = 0; i < 5; i++)
        assert_true(got[i] == a[i] + b);
}

static void vector_hints_must_hold(void **state)
{
    const float a[8] = {0};
    CUdeviceptr da = upload(a, sizeof(a));
    struct cuda_ops_vector p = {.out = da + 4, .a = da + 4, .count = 7, .a_step = 1, .head = 2};
    void *all[] = {&p};
    CUfunction function;

    (void)state;
    ok(cuModuleGetFunction(&function, module, "kops_square_f32_vector"));
    assert_int_equal(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, all, NULL), CUDA_ERROR_INVALID_VALUE);
    p.head = 3;
    ok(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, all, NULL));
    ok(cuCtxSynchronize());
}

/* A width that does not divide an address would be a misaligned access, and a wrong end of tiles move other bytes. */
static void pieces_are_moved_as_they_are_described(void **state)
{
    unsigned char from[20], to[20];
    const unsigned char zeros[20] = {0};
    CUdeviceptr there, back;
    struct cuda_ops_move p = {.count = 1, .tiles = 1};
    void *all[] = {&p};
    CUfunction function;

    (void)state;
    for (unsigned i = 0; i < sizeof(from); i++)
        from[i] = (unsigned char)(i + 1);
    there = upload(from, sizeof(from));
    back = upload(zeros, sizeof(zeros));
    p.pieces[0] =
        (struct cuda_ops_move_piece){.from = there + 2, .to = back + 6, .units = 5, .width = 2, .tiles_end = 1};
    run("kops_move", &p);
    ok(cuMemcpyDtoH(to, back, sizeof(to)));
    assert_memory_equal(to + 6, from + 2, 10);
    for (unsigned i = 0; i < sizeof(to); i++)
        assert_true((i >= 6 && i < 16) || !to[i]);
    ok(cuModuleGetFunction(&function, module, "kops_move"));
    p.pieces[0].width = 4;
    assert_int_equal(cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, NULL, all, NULL), CUDA_ERROR_INVALID_VALUE);
    p.pieces[0].width = 2;
    p.pieces[0].tiles_end = 2;
    assert_int_equal(cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, NULL, all, NULL), CUDA_ERROR_INVALID_VALUE);
}

/* out (3 × 2, of rows of 4) = square of a transposed, in f16. */
static void strided_squares_a_transpose(void **state)
{
    uint16_t a[6], out[12], got[12];
    struct cuda_ops_strided p = {
        .count = 6, .rank = 2, .sizes = {{.divisor = 2}, {.divisor = 3}}, .out_strides = {1, 4}, .a_strides = {3, 1}};

    (void)state;
    for (unsigned i = 0; i < 6; i++)
        a[i] = float_to_half((float)i + 0.5f);
    memset(out, 0xff, sizeof(out));
    p.a = upload(a, sizeof(a));
    p.out = upload(out, sizeof(out));
    run("kops_square_f16_strided", &p);
    ok(cuMemcpyDtoH(got, p.out, sizeof(got)));
    for (unsigned i = 0; i < 3; i++)
        for (unsigned j = 0; j < 4; j++) {
            float x = (float)(j * 3 + i) + 0.5f;

            assert_int_equal(got[i * 4 + j], j < 2 ? float_to_half(x * x) : 0xffff);
        }
    run("kops_copy_2_strided64", &p);
    ok(cuMemcpyDtoH(got, p.out, sizeof(got)));
    assert_int_equal(got[5], a[4]);
}

/* Two batches of out = 2 · a · bᵀ + 0.5 · out, 3 × 4 · 4 × 2, where both batches share b. */
static void check_gemm(const char *name, unsigned size, void (*put)(void *, unsigned, double),
                       double (*get)(const void *, unsigned))
{
    unsigned char a[24 * 8], b[8 * 8], out[12 * 8], got[12 * 8];
    struct cuda_ops_gemm p = {.a = {.row = 4, .column = 1, .batch = {12}},
                              .b = {.row = 1, .column = 4},
                              .out = {.row = 2, .column = 1, .batch = {6}},
                              .m = 3,
                              .n = 2,
                              .k = 4,
                              .alpha = 2,
                              .beta = 0.5,
                              .batch_count = 2,
                              .batch_shape = {2},
                              .batch_rank = 1};

    for (unsigned i = 0; i < 24; i++)
        put(a, i, (double)i - 11);
    for (unsigned i = 0; i < 8; i++)
        put(b, i, 0.25 * i);
    for (unsigned i = 0; i < 12; i++)
        put(out, i, i);
    p.a.address = upload(a, 24 * size);
    p.b.address = upload(b, 8 * size);
    p.out.address = upload(out, 12 * size);
    run(name, &p);
    ok(cuMemcpyDtoH(got, p.out.address, 12 * size));
    for (unsigned c = 0; c < 2; c++)
        for (unsigned i = 0; i < 3; i++)
            for (unsigned j = 0; j < 2; j++) {
                double sum = 0;

                for (unsigned l = 0; l < 4; l++)
                    sum += get(a, c * 12 + i * 4 + l) * get(b, j * 4 + l);
                assert_true(get(got, c * 6 + i * 2 + j) == 2 * sum + 0.5 * get(out, c * 6 + i * 2 + j));
            }
    /* k = 0: the product is 0, and beta = 0 does not read what may be NaN. */
    p.k = 0;
    p.beta = 0;
    put(out, 0, NAN);
    ok(cuMemcpyHtoD(p.out.address, out, 12 * size));
    run(name, &p);
    ok(cuMemcpyDtoH(got, p.out.address, 12 * size));
    assert_true(get(got, 0) == 0 && get(got, 11) == 0);
}

#define TYPE(name, type, to, from)                                                                                     \
    static void put_##name(void *array, unsigned i, double value)                                                      \
    {                                                                                                                  \
        ((type *)array)[i] = to(value);                                                                                \
    }                                                                                                                  \
    static double get_##name(const void *array, unsigned i)                                                            \
    {                                                                                                                  \
        return (double)from(((const type *)array)[i]);                                                                 \
    }
TYPE(f64, double, (double), (double))
TYPE(f32, float, (float), (float))
TYPE(f16, uint16_t, float_to_half, half_to_float)
TYPE(bf16, uint16_t, float_to_bfloat, bfloat_to_float)

static void gemm_every_dtype(void **state)
{
    (void)state;
    check_gemm("kops_gemm_f64_tiled_large", 8, put_f64, get_f64);
    check_gemm("kops_gemm_f32_tiled_small_any", 4, put_f32, get_f32);
    check_gemm("kops_gemm_f16_tiled_large_any", 2, put_f16, get_f16);
    check_gemm("kops_gemm_bf16_tiled_small", 2, put_bf16, get_bf16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(bfloats_round_to_nearest_even),
        cmocka_unit_test(vector_adds_a_scalar),
        cmocka_unit_test(vector_hints_must_hold),
        cmocka_unit_test(pieces_are_moved_as_they_are_described),
        cmocka_unit_test(strided_squares_a_transpose),
        cmocka_unit_test(gemm_every_dtype),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}

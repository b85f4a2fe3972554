/* Which gemms are copied without being asked to. */
#include "compute/repack_sketch.h"
#include "tests/support/unit.h"

static const char *estimate(enum dtype dtype, int64_t m, int64_t n, int64_t k, bool high, bool medium)
{
    struct plan plan = {.kind = PLAN_GEMM, .dtype = dtype, .out_dtype = dtype};
    const uint64_t addresses[STEP_MAX_OPERANDS] = {0};

    plan.gemm = (struct plan_gemm){.m = m, .n = n, .k = k, .batch_count = 1, .alpha = 1};
    plan.gemm.a = (struct plan_matrix){.row = k, .column = 1};
    plan.gemm.b = plan.gemm.out = (struct plan_matrix){.row = n, .column = 1};
    plan.gemm.high_precision_only = !medium;
    plan.gemm.in_pieces = high || medium;
    return repack_estimate(&plan, addresses);
}

TEST(large_misaligned_products_are_copied)
{
    assert_ptr_equal(estimate(DTYPE_BF16, 4097, 4097, 4097, false, false), repack_padded);
    assert_ptr_equal(estimate(DTYPE_F16, 4095, 4095, 4095, false, false), repack_padded);
    assert_ptr_equal(estimate(DTYPE_F32, 4097, 4097, 4097, false, true), repack_padded);
    assert_ptr_equal(estimate(DTYPE_F32, 8192, 8192, 8192, true, false), repack_bf16x3);
    assert_ptr_equal(estimate(DTYPE_F32, 4097, 4097, 4097, true, false), repack_bf16x3);
    assert_null(estimate(DTYPE_BF16, 4096, 4096, 4096, false, false));
    assert_null(estimate(DTYPE_BF16, 4097, 4096, 4096, false, false)); /* rows of no matrix lie along m */
    assert_null(estimate(DTYPE_BF16, 65, 65, 65, false, false));
    assert_null(estimate(DTYPE_BF16, 1, 8191, 8191, false, false)); /* the copy would take longer */
    assert_null(estimate(DTYPE_F32, 4097, 4097, 4097, false, false));
    assert_null(estimate(DTYPE_F32, 64, 64, 64, true, false));
    assert_ptr_equal(estimate(DTYPE_F64, 4097, 4097, 4097, false, false), repack_padded);
    assert_null(estimate(DTYPE_F64, 4098, 4098, 4098, false, false)); /* two elements are 16 bytes */
    assert_null(estimate(DTYPE_F64, 1001, 1001, 1001, false, false));
}

/* Where our own kernels for few rows, and for small products, are not as good. */
TEST(large_products_with_gelu_are_activated)
{
    static const struct {
        enum dtype dtype;
        int64_t m;
        enum plan_activation activation;
        bool wanted;
    } cases[] = {{DTYPE_F32, 1024, PLAN_GELU, true}, {DTYPE_F64, 1024, PLAN_GELU, true},
                 {DTYPE_F32, 16, PLAN_GELU, false},  {DTYPE_BF16, 1024, PLAN_GELU, false},
                 {DTYPE_F32, 17, PLAN_GELU, false},  {DTYPE_F32, 1024, PLAN_RELU, false}};
    const uint64_t addresses[STEP_MAX_OPERANDS] = {0};

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct plan plan = {.kind = PLAN_GEMM, .dtype = cases[i].dtype, .out_dtype = cases[i].dtype};

        plan.gemm = (struct plan_gemm){.m = cases[i].m, .n = 1024, .k = 1024, .batch_count = 1, .alpha = 1};
        plan.gemm.a = plan.gemm.b = plan.gemm.out = (struct plan_matrix){.row = 1024, .column = 1};
        plan.gemm.high_precision_only = plan.gemm.has_bias = true;
        plan.gemm.bias = (struct plan_matrix){.row = 0, .column = 1};
        plan.gemm.activation = cases[i].activation;
        if ((repack_estimate(&plan, addresses) == repack_activated) != cases[i].wanted)
            fail_msg("case %u", i);
    }
}

/* Gemm through copies of its operands: which are copied unasked, what cuBLASLt is given, exactness, special numbers,
 * panels, memory. That every layout is right is for tests/conformance. */
#include "driver/device.h" /* before blaslt_support.h, whose `device` its parameters would shadow */

#include "blaslt_support.h"

#include <math.h>

#include "compute/repack_sketch.h"

enum { BYTES = 1 << 18, PLENTY = 8 << 20 };

static int open_with(uint64_t repack_bytes)
{
    test_config.cuda_repack_bytes = repack_bytes;
    return open_with_library(BYTES);
}

static int open_plenty(void **state)
{
    return open_with(PLENTY);
}

/* Rows that start anywhere, which the library may not read or write in place. The results: conformance. */
TEST_WITH(padded_products_are_aligned, open_plenty, close_all)
{
    static const struct {
        unsigned m, n, k, gap, first; /* elements between the rows of a, and in front of each operand */
    } cases[] = {{9, 7, 13, 2, 1}, {16, 8, 24, 0, 1}, {16, 8, 24, 0, 2}, {16, 8, 24, 1, 0}};

    for (unsigned c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        const unsigned m = cases[c].m, n = cases[c].n, k = cases[c].k, first = cases[c].first;
        const struct view views[] = {strided(0, first, m, k, k + cases[c].gap, 1), strided(1, first, k, n, 1, k),
                                     strided(2, first, m, n, n, 1)};
        struct test_job t;

        make_gemm(&t, views, 2, 0.5);
        step_copy_variant(t.step.variant, "padded");
        run_job(stream, &t);
        assert_string_equal(t.step.variant_used, "padded");
        assert_int_equal(*wrong + *misaligned, 0);
    }
}

/* ---- panels ---- */

static int open_little(void **state)
{
    return open_with(1 << 20);
}

TEST_WITH(large_products_come_in_panels, open_little, close_all)
{
    /* Copies of all: 3 pieces of a (600 rows) and of b (8 rows) with k = 400, and out: 1.5 MiB. */
    enum { M = 600, N = 5, K = 400 };
    struct backend_memory *a = device_memory(M * K * 4), *b = device_memory(K * N * 4), *out = device_memory(M * N * 4);
    const struct view views[] = {MATRIX(a, M, K), MATRIX(b, K, N), MATRIX(out, M, N)};
    struct test_job t;
    unsigned before;

    fill(a, M * K, 1);
    fill(b, K * N, 2);
    for (unsigned i = 0; i < 2; i++) { /* the first one makes plans, whose algorithms run once to be loaded */
        before = *products;
        fill(out, M * N, 3);
        make_gemm(&t, views, 1, 1);
        step_copy_variant(t.step.variant, "bf16x6");
        run_job(stream, &t);
        assert_string_equal(t.step.variant_used, "bf16x6");
    }
    assert_int_equal(*products - before,
                     3 * (2 + 2)); /* three panels, each with two sums of pieces and two chunks of k */
    for (unsigned i = 0; i < M; i++)
        for (unsigned j = 0; j < N; j++) {
            float want = value(i * N + j, 3);

            for (unsigned k = 0; k < K; k++)
                want += value(i * K + k, 1) * value(k * N + j, 2);
            assert_true(floats(out)[i * N + j] == want);
        }
}

TEST_WITH(what_fits_in_no_panel_is_refused_or_done_otherwise, open_little, close_all)
{
    struct plan plan = {.kind = PLAN_GEMM, .dtype = DTYPE_F32, .out_dtype = DTYPE_F32};
    const uint64_t addresses[STEP_MAX_OPERANDS] = {0};
    struct repack_sketch sketch;

    plan.gemm = (struct plan_gemm){.m = 256, .n = 256, .k = 1 << 20, .batch_count = 1, .alpha = 1};
    plan.gemm.a = (struct plan_matrix){.row = 1 << 20, .column = 1};
    plan.gemm.b = plan.gemm.out = (struct plan_matrix){.row = 256, .column = 1};
    MUST_FAIL(repack_sketch(&plan, addresses, repack_bf16x6, 1 << 20, &sketch, &e), ERROR_INVALID_ARGUMENT,
              "repack_bytes");
}

/* ---- special numbers ---- */

TEST_WITH(infinities_and_the_ends_of_the_range_stay, open_plenty, close_all)
{
    static const char *const variants[] = {"bf16x3", "bf16x6"};
    static const float max = 0x1.fffffep127f, small = 0x1.234568p-126f, x = 0x1.234568p-120f, y = 0x1.876544p100f;
    const struct {
        float a[2], b[2], want; /* 0: nothing finite */
    } cases[] = {
        {{INFINITY, 1}, {2, 1}, INFINITY},
        {{3, 1.1f}, {-INFINITY, 1.7f}, -INFINITY},
        {{-INFINITY, 1}, {1e-30f, 1}, -INFINITY},
        {{INFINITY, 1}, {0, 1}, NAN},
        {{INFINITY, -INFINITY}, {1, 1}, NAN},
        {{NAN, 1}, {1, 1}, NAN},
        {{INFINITY, 1}, {INFINITY, 1}, 0},
        {{max, 0}, {1, 0}, max},
        {{-max, 1}, {0.5f, 1}, -max / 2},
        {{small, 0}, {1, 0}, small},
        {{x, 0}, {y, 0}, x * y},
    };
    const struct view views[] = {MATRIX(memory[0], 1, 2), MATRIX(memory[1], 2, 1), MATRIX(memory[2], 1, 1)};

    for (unsigned i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        const unsigned c = i / 2;
        const float want = cases[c].want;
        struct test_job t;
        float got;
        bool right;

        memcpy(floats(memory[0]), cases[c].a, sizeof(cases[c].a));
        memcpy(floats(memory[1]), cases[c].b, sizeof(cases[c].b));
        make_gemm(&t, views, 1, 0);
        t.step.plan.gemm.in_pieces = true;
        step_copy_variant(t.step.variant, variants[i % 2]);
        run_job(stream, &t);
        got = floats(memory[2])[0];
        if (isnan(want) || want == 0)
            right = isnan(want) ? isnan(got) : !isfinite(got);
        else
            right = isinf(want) ? got == want : fabsf(got / want - 1) < (i % 2 ? 1e-6f : 4e-5f);
        if (!right)
            fail_msg("%s, case %u: %g, not %g", variants[i % 2], c, (double)got, (double)want);
    }
}

/* ---- refusals ---- */

TEST_WITH(variants_that_do_not_apply_say_why, open_plenty, close_all)
{
    static const struct {
        const char *variant, *why;
        enum dtype dtype;
    } cases[] = {
        {"padded", "16-byte", DTYPE_F32}, {"bf16x3", "precision \"high\"", DTYPE_F32}, {"bf16x6", "f32", DTYPE_F64}};

    for (unsigned c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct view views[3];
        struct error e = {0};
        struct test_job t;

        for (unsigned i = 0; i < 3; i++) {
            views[i] = MATRIX(memory[i], 16, 16);
            views[i].dtype = cases[c].dtype;
        }
        make_gemm(&t, views, 1, 0);
        step_copy_variant(t.step.variant, cases[c].variant);
        if (backend->check(device, &t.step, &e) == 0) {
            run_failing(stream, &t, ERROR_INVALID_ARGUMENT);
            e = t.job.error;
        }
        if (e.code != ERROR_INVALID_ARGUMENT || !strstr(e.message, cases[c].why))
            fail_msg("\"%s\" does not say \"%s\"", e.message, cases[c].why);
    }
}

/* ---- memory ---- */

/* The smallest product for which the estimate takes pieces. */
TEST_WITH(without_memory_operands_are_not_copied, open_plenty, close_all)
{
    enum { N = 768 };
    struct backend_stream *fresh = stream_open();
    struct view views[3];

    for (unsigned i = 0; i < 3; i++)
        views[i] = MATRIX(device_memory(N * N * sizeof(float)), N, N);
    for (unsigned i = 0; i < 3; i++) { /* the first one makes cuBLASLt's workspace */
        struct test_job t;

        make_gemm(&t, views, 1, 0);
        t.step.plan.gemm.in_pieces = true;
        if (i)
            inject("cuMemAllocFromPoolAsync", 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
        if (i == 2) { /* a forced variant fails */
            step_copy_variant(t.step.variant, "bf16x3");
            run_failing(fresh, &t, ERROR_OUT_OF_MEMORY);
            break;
        }
        run_job(fresh, &t);
        assert_string_equal(t.step.variant_used, i ? "cublaslt" : "bf16x3");
    }
}

TEST_WITH(the_share_for_copies_is_bounded, open_plenty, close_all)
{
    struct cuda_device *d = cuda_device(device);
    CUdeviceptr first, second;

    MUST(cuda_scratch_take(d, d->service, PLENTY / 2 + 1, &first, &e));
    MUST_FAIL(cuda_scratch_take(d, d->service, PLENTY / 2, &second, &e), ERROR_OUT_OF_MEMORY, "");
    cuda_scratch_give(d, d->service, first, PLENTY / 2 + 1);
    MUST(cuda_scratch_take(d, d->service, PLENTY, &second, &e));
    cuda_scratch_give(d, d->service, second, PLENTY);
    assert_int_equal(atomic_load(&d->repack_used), 0);
}

/* ---- unasked ---- */

TEST(large_products_are_copied)
{
    static const struct {
        enum dtype dtype;
        int64_t m, n, k;
        const char *precision;
        const char *variant;
    } cases[] = {
        {DTYPE_BF16, 4097, 4097, 4097, "highest", "padded"},
        {DTYPE_F16, 4095, 4095, 4095, "highest", "padded"},
        {DTYPE_F32, 4097, 4097, 4097, "medium", "padded"},
        {DTYPE_F32, 8192, 8192, 8192, "high", "bf16x3"},
        {DTYPE_F32, 4097, 4097, 4097, "high", "bf16x3"},
        {DTYPE_BF16, 4096, 4096, 4096, "highest", NULL},
        {DTYPE_BF16, 4097, 4096, 4096, "highest", NULL}, /* rows of no matrix lie along m */
        {DTYPE_BF16, 65, 65, 65, "highest", NULL},
        {DTYPE_BF16, 1, 8191, 8191, "highest", NULL}, /* the copy would take longer */
        {DTYPE_F32, 4097, 4097, 4097, "highest", NULL},
        {DTYPE_F32, 64, 64, 64, "high", NULL},
        {DTYPE_F64, 4097, 4097, 4097, "highest", "padded"},
        {DTYPE_F64, 4098, 4098, 4098, "highest", NULL}, /* two elements are 16 bytes */
        {DTYPE_F64, 1001, 1001, 1001, "highest", NULL},
        /* with a bias and gelu: not where our kernels for few rows, or for small products, are as good */
        {DTYPE_F32, 1024, 1024, 1024, "gelu", "activated"},
        {DTYPE_F64, 1024, 1024, 1024, "gelu", "activated"},
        {DTYPE_F32, 16, 1024, 1024, "gelu", NULL},
        {DTYPE_F32, 17, 1024, 1024, "gelu", NULL},
        {DTYPE_BF16, 1024, 1024, 1024, "gelu", NULL},
        {DTYPE_F32, 1024, 1024, 1024, "relu", NULL},
    };
    const uint64_t addresses[STEP_MAX_OPERANDS] = {0};

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct plan plan = {.kind = PLAN_GEMM, .dtype = cases[i].dtype, .out_dtype = cases[i].dtype};
        const char *p = cases[i].precision, *got;
        const bool medium = !strcmp(p, "medium"), has_bias = strstr(p, "lu");

        plan.gemm = (struct plan_gemm){.m = cases[i].m, .n = cases[i].n, .k = cases[i].k, .batch_count = 1, .alpha = 1};
        plan.gemm.a = (struct plan_matrix){.row = cases[i].k, .column = 1};
        plan.gemm.b = plan.gemm.out = (struct plan_matrix){.row = cases[i].n, .column = 1};
        plan.gemm.high_precision_only = !medium;
        plan.gemm.in_pieces = medium || !strcmp(p, "high");
        plan.gemm.has_bias = has_bias;
        plan.gemm.bias = (struct plan_matrix){.row = 0, .column = 1};
        plan.gemm.activation = !has_bias ? PLAN_NONE : *p == 'g' ? PLAN_GELU : PLAN_RELU;
        got = repack_estimate(&plan, addresses);
        if (!got != !cases[i].variant || (got && strcmp(got, cases[i].variant) != 0))
            fail_msg("case %u: %s", i, got ? got : "none");
    }
}

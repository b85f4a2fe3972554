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

/* Rows that start anywhere, which the library may not read or write in place. */
TEST_WITH(padded_products_are_aligned, open_plenty, close_all)
{
    static const struct {
        unsigned m, n, k, gap, first; /* elements between the rows of a, and in front of each operand */
    } cases[] = {{9, 7, 13, 2, 1}, {16, 8, 24, 0, 1}, {16, 8, 24, 0, 2}, {16, 8, 24, 1, 0}};
    struct test_job t;

    for (unsigned c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        const unsigned m = cases[c].m, n = cases[c].n, k = cases[c].k, lead = k + cases[c].gap, first = cases[c].first;
        const struct view views[] = {strided(0, first, m, k, lead, 1), strided(1, first, k, n, 1, k),
                                     strided(2, first, m, n, n, 1)};

        for (unsigned i = 0; i < 3; i++)
            fill(memory[i], BYTES / sizeof(float), i + 1);
        make_gemm(&t, views, 2, 0.5);
        step_copy_variant(t.step.variant, "padded");
        run_job(stream, &t);
        assert_string_equal(t.step.variant_used, "padded");
        assert_int_equal(*wrong + *misaligned, 0);
        for (unsigned at = 0; at < BYTES / sizeof(float); at++) {
            const unsigned i = (at - first) / n, j = (at - first) % n;
            float want = value(at, 3);

            if (at >= first && i < m) {
                want *= 0.5f;
                for (unsigned l = 0; l < k; l++)
                    want += 2 * value(first + i * lead + l, 1) * value(first + j * k + l, 2);
            }
            assert_true(floats(memory[2])[at] == want);
        }
    }
}

/* With two pieces 2^-16 of each operand is lost, and 2^-16 of the product. Three pieces lose nothing that f32 has. */
TEST_WITH(products_of_pieces_are_as_exact_as_stated, open_plenty, close_all)
{
    enum { N = 32 };
    static const struct {
        const char *variant;
        double allowed;
    } cases[] = {{"bf16x3", 4.7e-5}, {"bf16x6", 2e-7}};
    struct view views[3];
    struct test_job t;

    for (unsigned i = 0; i < 3; i++)
        views[i] = MATRIX(memory[i], N, N);
    for (unsigned i = 0; i < 2 * N * N; i++) /* all bits of f32 */
        floats(memory[i / (N * N)])[i % (N * N)] = ((float)(i * 2654435761U >> 1) - 0x1p30f) / 0x1p29f;
    for (unsigned c = 0; c < 2; c++) {
        make_gemm(&t, views, 1, 0);
        t.step.plan.gemm.in_pieces = true;
        step_copy_variant(t.step.variant, cases[c].variant);
        run_job(stream, &t);
        for (unsigned at = 0; at < N * N; at++) {
            double want = 0, terms = 0;

            for (unsigned k = 0; k < N; k++) {
                const double x = (double)floats(memory[0])[at / N * N + k] * (double)floats(memory[1])[k * N + at % N];

                want += x;
                terms += fabs(x);
            }
            assert_true(fabs((double)floats(memory[2])[at] - want) <= cases[c].allowed * terms + 1e-7 * fabs(want));
        }
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

static float special_product(const char *variant, float x, float y, float other_x, float other_y)
{
    const struct view views[] = {MATRIX(memory[0], 1, 2), MATRIX(memory[1], 2, 1), MATRIX(memory[2], 1, 1)};
    struct test_job t;

    floats(memory[0])[0] = x;
    floats(memory[0])[1] = other_x;
    floats(memory[1])[0] = y;
    floats(memory[1])[1] = other_y;
    make_gemm(&t, views, 1, 0);
    t.step.plan.gemm.in_pieces = true;
    step_copy_variant(t.step.variant, variant);
    run_job(stream, &t);
    return floats(memory[2])[0];
}

TEST_WITH(infinities_and_the_ends_of_the_range_stay, open_plenty, close_all)
{
    static const char *const variants[] = {"bf16x3", "bf16x6"};
    const float max = 0x1.fffffep127f;

    for (unsigned i = 0; i < 2; i++) {
        const char *v = variants[i];

        assert_true(special_product(v, INFINITY, 2, 1, 1) == INFINITY);
        assert_true(special_product(v, 3, -INFINITY, 1.1f, 1.7f) == -INFINITY);
        assert_true(special_product(v, -INFINITY, 1e-30f, 1, 1) == -INFINITY);
        assert_true(isnan(special_product(v, INFINITY, 0, 1, 1)));
        assert_true(isnan(special_product(v, INFINITY, 1, -INFINITY, 1)));
        assert_true(isnan(special_product(v, NAN, 1, 1, 1)));
        assert_false(isfinite(special_product(v, INFINITY, INFINITY, 1, 1)));
        assert_true(fabsf(special_product(v, max, 1, 0, 0) / max - 1) < 4e-5f);
        assert_true(fabsf(special_product(v, -max, 0.5f, 1, 1) / (max / 2) + 1) < 4e-5f);
        assert_true(fabsf(special_product(v, 0x1.234568p-126f, 1, 0, 0) / 0x1.234568p-126f - 1) < 4e-5f);
        assert_true(
            fabsf(special_product(v, 0x1.234568p-120f, 0x1.876544p100f, 0, 0) / (0x1.234568p-120f * 0x1.876544p100f) -
                  1) < 4e-5f);
    }
    assert_true(special_product("bf16x6", max, 1, 0, 0) == max);
}

/* ---- refusals ---- */

static void expect_refused(struct test_job *t, const char *variant, const char *why)
{
    struct error e = {0};

    step_copy_variant(t->step.variant, variant);
    if (backend->check(device, &t->step, &e) == 0) {
        start_job(stream, t);
        finish(t);
        assert_true(t->job.failed);
        e = t->job.error;
    }
    assert_int_equal(e.code, ERROR_INVALID_ARGUMENT);
    if (!strstr(e.message, why))
        fail_msg("\"%s\" does not say \"%s\"", e.message, why);
}

TEST_WITH(variants_that_do_not_apply_say_why, open_plenty, close_all)
{
    const struct view aligned[] = {MATRIX(memory[0], 16, 16), MATRIX(memory[1], 16, 16), MATRIX(memory[2], 16, 16)};
    struct view f64[] = {MATRIX(memory[0], 5, 3), MATRIX(memory[1], 3, 7), MATRIX(memory[2], 5, 7)};
    struct test_job t;

    make_gemm(&t, aligned, 1, 0);
    expect_refused(&t, "padded", "16-byte");
    make_gemm(&t, aligned, 1, 0);
    expect_refused(&t, "bf16x3", "precision \"high\"");
    for (unsigned i = 0; i < 3; i++)
        f64[i].dtype = DTYPE_F64;
    make_gemm(&t, f64, 1, 0);
    expect_refused(&t, "bf16x6", "f32");
}

/* ---- memory ---- */

static void make_odd(struct test_job *t)
{
    const struct view views[] = {MATRIX(memory[0], 5, 3), MATRIX(memory[1], 3, 7), MATRIX(memory[2], 5, 7)};

    fill(memory[0], 15, 1);
    fill(memory[1], 21, 2);
    make_gemm(t, views, 1, 0);
    step_copy_variant(t->step.variant, "bf16x6");
}

static void expect_odd(void)
{
    for (unsigned i = 0; i < 5; i++)
        for (unsigned j = 0; j < 7; j++) {
            float want = 0;

            for (unsigned k = 0; k < 3; k++)
                want += value(i * 3 + k, 1) * value(k * 7 + j, 2);
            assert_true(floats(memory[2])[i * 7 + j] == want);
        }
}

TEST_WITH(jobs_repeat_and_follow_each_other, open_plenty, close_all)
{
    struct test_job jobs[3];

    for (unsigned i = 0; i < 3; i++) {
        make_odd(&jobs[i]);
        jobs[i].job.repeat = 40;
        start_job(stream, &jobs[i]);
    }
    for (unsigned i = 0; i < 3; i++) {
        finish(&jobs[i]);
        assert_false(jobs[i].job.failed);
        assert_int_equal(jobs[i].job.n_samples, 40);
    }
    expect_odd();
}

TEST_WITH(without_memory_a_forced_variant_fails, open_plenty, close_all)
{
    struct backend_stream *fresh = stream_open();
    struct test_job t;

    make_odd(&t);
    run_job(fresh, &t); /* cuBLASLt's workspace is there */
    make_odd(&t);
    inject("cuMemAllocFromPoolAsync", 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
    run_failing(fresh, &t, ERROR_OUT_OF_MEMORY);
    make_odd(&t);
    run_job(fresh, &t);
    expect_odd();
}

TEST_WITH(tensors_in_host_memory_are_copied_there_and_here, open_plenty, close_all)
{
    struct backend_memory *host[3] = {host_memory(4096), host_memory(4096), host_memory(4096)};
    const struct view views[] = {MATRIX(host[0], 5, 3), MATRIX(host[1], 3, 7), MATRIX(host[2], 5, 7)};
    struct test_job t;

    fill(host[0], 15, 1);
    fill(host[1], 21, 2);
    make_gemm(&t, views, 1, 0);
    step_copy_variant(t.step.variant, "bf16x6");
    run_job(stream, &t);
    memcpy(floats(memory[2]), floats(host[2]), 35 * sizeof(float));
    expect_odd();
}

/* The smallest product for which the estimate takes pieces. */
static void make_high(struct test_job *t, struct backend_memory **large)
{
    enum { N = 768 };
    const struct view views[] = {MATRIX(large[0], N, N), MATRIX(large[1], N, N), MATRIX(large[2], N, N)};

    fill(large[0], N * N, 1);
    fill(large[1], N * N, 2);
    make_gemm(t, views, 1, 0);
    t->step.plan.gemm.in_pieces = true;
}

TEST_WITH(without_memory_operands_are_not_copied, open_plenty, close_all)
{
    struct backend_memory *large[3];
    struct test_job t;

    for (unsigned i = 0; i < 3; i++)
        large[i] = device_memory(768 * 768 * sizeof(float));
    make_high(&t, large);
    run_job(stream, &t);
    assert_string_equal(t.step.variant_used, "bf16x3");
    make_high(&t, large);
    inject("cuMemAllocFromPoolAsync", 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
    run_job(stream, &t);
    assert_string_equal(t.step.variant_used, "cublaslt");
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

/* Gemm through copies of its operands: results of every layout beside plain loops in f64, what cuBLASLt is given,
 * special numbers, panels. */
#include "blaslt_support.h"

#include <math.h>

#include "compute/repack_sketch.h"

enum { BYTES = 1 << 18, REPACK_BYTES = 8 << 20, ROUNDS = 150 };

static uint64_t seed = 7;

static int open_with(uint64_t repack_bytes)
{
    test_config.cuda_repack_bytes = repack_bytes;
    return open_with_library(BYTES);
}

static int open_plenty(void **state)
{
    return open_with(REPACK_BYTES);
}

static uint64_t below(uint64_t n)
{
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    return (seed >> 33) % n;
}

/* ---- elements ---- */

static float of_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float x;

    memcpy(&x, &wide, sizeof(x));
    return x;
}

static double load(enum dtype dtype, const struct backend_memory *m, int64_t index)
{
    if (dtype == DTYPE_F64)
        return ((const double *)(const void *)floats(m))[index];
    return dtype == DTYPE_F32 ? (double)floats(m)[index] : (double)of_bf16(((const uint16_t *)floats(m))[index]);
}

/* Numbers of about 1 with all of f32's bits; as bf16 the same numbers cut off. */
static void fill_random(enum dtype dtype, struct backend_memory *m)
{
    for (unsigned i = 0; i < BYTES / dtype_size(dtype); i++) {
        const float x = ((float)(int64_t)below(1U << 31) - 0x1p30f) / 0x1p29f;
        uint32_t bits;

        memcpy(&bits, &x, sizeof(bits));
        if (dtype == DTYPE_F64)
            ((double *)(void *)floats(m))[i] = (double)x + ldexp((double)below(1 << 20), -50);
        else if (dtype == DTYPE_F32)
            floats(m)[i] = x;
        else
            ((uint16_t *)floats(m))[i] = (uint16_t)(bits >> 16);
    }
}

/* ---- one product ---- */

struct request {
    const char *variant;
    enum dtype in, out;
    bool high, medium;
    double alpha, beta;
    double allowed; /* of the sum of absolute terms */
    struct view views[3];
};

static void random_matrix(struct view *v, const struct view *like, unsigned operand, int64_t rows, int64_t columns)
{
    const unsigned batches = like->rank - 2;
    const bool wide = below(3), strided = operand < 2 && below(6) == 0;
    const int64_t step = strided ? 2 : 1, gap = (int64_t)below(4) * (below(2) ? 8 : 1);
    const int64_t ld = (wide ? columns : rows) * step + gap;
    int64_t matrix = ld * (wide ? rows : columns) + (int64_t)below(3);

    *v = (struct view){.rank = like->rank, .strided = true, .offset = below(3) ? 8 * below(3) : below(9)};
    v->shape[batches] = rows;
    v->shape[batches + 1] = columns;
    v->strides[batches] = wide ? ld : step;
    v->strides[batches + 1] = wide ? step : ld;
    for (unsigned i = batches; i-- > 0;) {
        v->shape[i] = operand == 2 || below(4) ? like->shape[i] : 1;
        v->strides[i] = matrix;
        matrix *= v->shape[i];
    }
    assert_true((uint64_t)matrix + v->offset < BYTES / 8);
}

static void random_views(struct request *r)
{
    const int64_t m = 1 + (int64_t)below(40), n = 1 + (int64_t)below(40), k = 1 + (int64_t)below(50);
    struct view like = {.rank = 2 + (below(3) ? 0 : 1 + (unsigned)below(2))};

    for (unsigned i = 0; i + 2 < like.rank; i++)
        like.shape[i] = 1 + (int64_t)below(3);
    random_matrix(&r->views[0], &like, 0, m, k);
    random_matrix(&r->views[1], &like, 1, k, n);
    for (unsigned i = 0; i + 2 < like.rank; i++)
        like.shape[i] = r->views[0].shape[i] > r->views[1].shape[i] ? r->views[0].shape[i] : r->views[1].shape[i];
    random_matrix(&r->views[2], &like, 2, m, n);
    for (unsigned i = 0; i < 3; i++) {
        r->views[i].memory = memory[i];
        r->views[i].dtype = i < 2 ? r->in : r->out;
    }
}

static int64_t at(const struct view *v, int64_t batch0, int64_t batch1, int64_t i, int64_t j)
{
    const int64_t index[] = {batch0, batch1, i, j};
    int64_t offset = (int64_t)v->offset;

    for (unsigned d = 0; d < v->rank; d++)
        offset += (v->shape[d] == 1 ? 0 : index[4 - v->rank + d]) * v->strides[d];
    return offset;
}

static void prepare_job(struct test_job *t, const struct request *r)
{
    make_gemm(t, r->views, r->alpha, r->beta);
    t->step.plan.gemm.high_precision_only = !r->medium;
    t->step.plan.gemm.in_pieces = r->high || r->medium;
    if (r->variant)
        step_copy_variant(t->step.variant, r->variant);
}

static double rounding_of(enum dtype dtype)
{
    return dtype == DTYPE_F64 ? 3e-16 : dtype == DTYPE_F32 ? 1e-7 : 4e-3;
}

/* Compares out with loops over what it was, and what it has between its elements with `before`. */
static void expect_product(const struct request *r, const unsigned char *before)
{
    const struct view *v = r->views;
    const unsigned rank = v[2].rank;
    const int64_t b0 = rank > 3 ? v[2].shape[rank - 4] : 1, b1 = rank > 2 ? v[2].shape[rank - 3] : 1;
    const size_t size = dtype_size(r->out);
    const struct backend_memory old = {.host = (unsigned char *)(uintptr_t)before};

    for (int64_t c = 0; c < b0 * b1; c++)
        for (int64_t i = 0; i < v[2].shape[rank - 2]; i++)
            for (int64_t j = 0; j < v[2].shape[rank - 1]; j++) {
                const int64_t to = at(&v[2], c / b1, c % b1, i, j);
                double want = r->beta != 0 ? r->beta * load(r->out, &old, to) : 0, terms = fabs(want), got;

                for (int64_t k = 0; k < v[0].shape[rank - 1]; k++) {
                    const double x = load(r->in, memory[0], at(&v[0], c / b1, c % b1, i, k)) *
                                     load(r->in, memory[1], at(&v[1], c / b1, c % b1, k, j)) * r->alpha;

                    want += x;
                    terms += fabs(x);
                }
                got = load(r->out, memory[2], to);
                if (!(fabs(got - want) <= r->allowed * terms + rounding_of(r->out) * fabs(want)))
                    fail_msg("%s: out[%d, %d] of batch %d is %g, not %g", r->variant, (int)i, (int)j, (int)c, got,
                             want);
                memcpy((unsigned char *)floats(memory[2]) + (uint64_t)to * size, before + (uint64_t)to * size, size);
            }
    assert_memory_equal(floats(memory[2]), before, BYTES);
}

static void run_random(const char *variant, enum dtype in, enum dtype out, bool high, bool medium, double allowed)
{
    unsigned char *before = malloc(BYTES);
    unsigned run = 0;

    assert_non_null(before);
    for (unsigned round = 0; round < ROUNDS; round++) {
        static const double factors[] = {0, 0, 1, -1.5};
        struct request r = {.variant = variant,
                            .in = in,
                            .out = out,
                            .high = high,
                            .medium = medium,
                            .alpha = below(2) ? 1 : 0.75,
                            .beta = factors[below(4)],
                            .allowed = allowed};
        struct test_job t;

        random_views(&r);
        fill_random(in, memory[0]);
        fill_random(in, memory[1]);
        fill_random(out, memory[2]);
        memcpy(before, floats(memory[2]), BYTES);
        prepare_job(&t, &r);
        *misaligned = 0;
        start_job(stream, &t);
        finish(&t);
        if (t.job.failed) {
            assert_int_equal(t.job.error.code, ERROR_INVALID_ARGUMENT);
            assert_non_null(strstr(t.job.error.message, "16-byte"));
            continue;
        }
        run++;
        assert_string_equal(t.step.variant_used, variant);
        assert_int_equal(*wrong, 0);
        if (t.step.plan.gemm.n > 1 && t.step.plan.gemm.k > 1) /* a vector is given as one row, whose extent is 1 */
            assert_int_equal(*misaligned, 0);
        expect_product(&r, before);
    }
    assert_true(run > ROUNDS / 2);
    free(before);
}

TEST_WITH(padded_products_are_right_and_aligned, open_plenty, close_all)
{
    run_random("padded", DTYPE_BF16, DTYPE_BF16, false, false, 1e-7);
    run_random("padded", DTYPE_BF16, DTYPE_F32, false, false, 1e-7);
    run_random("padded", DTYPE_F32, DTYPE_F32, false, true, 1e-7);
    run_random("padded", DTYPE_F32, DTYPE_F32, false, false, 1e-7);
    run_random("padded", DTYPE_F64, DTYPE_F64, false, false, 1e-15);
}

/* With two pieces 2^-16 of each operand is lost, and 2^-16 of the product. Three pieces lose nothing that f32 has. */
TEST_WITH(products_of_pieces_are_as_exact_as_stated, open_plenty, close_all)
{
    run_random("bf16x3", DTYPE_F32, DTYPE_F32, true, false, 4.7e-5);
    run_random("bf16x6", DTYPE_F32, DTYPE_F32, false, false, 2e-7);
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

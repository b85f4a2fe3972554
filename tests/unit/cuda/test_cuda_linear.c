/* linear with what cuBLASLt has no epilogue for: who computes it, and that it is right. */
#include "blaslt_support.h"

#include <math.h>

enum { BYTES = 1 << 20 };

/* gelu(a · b + bias) of f32, a and b row-major from their memory's beginning; values lie around 0. */
static void expect_gelu(const struct view *views, const char *forced, const char *variant)
{
    const int64_t m = views[0].shape[0], k = views[0].shape[1], n = views[1].shape[1];
    const int64_t row = views[3].strides[0], column = views[3].strides[1];
    const unsigned before = *products;
    struct test_job t;

    for (unsigned i = 0; i < 3; i++)
        fill(memory[i], BYTES / sizeof(float), i + 1);
    make_linear(&t, views, LINEAR_ACTIVATION_GELU);
    step_copy_variant(t.step.variant, forced);
    run_job(stream, &t);
    assert_string_equal(t.step.variant_used, variant);
    assert_int_equal(*products > before,
                     strcmp(variant, "activated") == 0); /* a plan's first product is run to load it */
    assert_int_equal(*wrong, 0);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            const double got = (double)floats(memory[2])[i * row + j * column];
            double x = (double)value((unsigned)(views[2].offset + (uint64_t)j), 2);

            for (int64_t l = 0; l < k; l++)
                x += (double)value((unsigned)(i * k + l), 1) * (double)value((unsigned)(l * n + j), 2);
            x = 0.5 * x * erfc(-x * 0.70710678118654752);
            if (!(fabs(got - x) <= 2e-6 * (1 + fabs(x))))
                fail_msg("element %lld, %lld: %g, not %g", (long long)i, (long long)j, got, x);
        }
    /* What lies between the rows stays. */
    for (int64_t at = n; row > n && column == 1 && at < row; at++)
        assert_true(floats(memory[2])[at] == value((unsigned)at, 3));
}

TEST(test_who_computes)
{
    static const struct {
        int64_t m, k, n, row, column; /* the last two: strides of out */
        const char *forced, *variant;
    } cases[] = {
        {256, 512, 256, 256, 1, "", "activated"},  {256, 512, 256, 300, 1, "", "activated"},
        {256, 512, 256, 1, 256, "", "tiled"}, /* the library would add the bias to the wrong side */
        {16, 512, 256, 256, 1, "", "skinny"},      {9, 5, 8, 8, 1, "", "tiled"},
        {9, 5, 8, 8, 1, "activated", "activated"}, {9, 5, 8, 12, 1, "activated", "activated"},
        {1, 5, 8, 8, 1, "activated", "activated"},
    };

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const int64_t m = cases[i].m, k = cases[i].k, n = cases[i].n;
        const struct view views[] = {MATRIX(memory[0], m, k),
                                     MATRIX(memory[1], k, n),
                                     {.memory = memory[1], .offset = 4096, .rank = 1, .shape = {n}},
                                     strided(2, 0, m, n, cases[i].row, cases[i].column)};

        print_message("%d x %d x %d, out by %d, %d\n", (int)m, (int)k, (int)n, (int)cases[i].row, (int)cases[i].column);
        expect_gelu(views, cases[i].forced, cases[i].variant);
    }
}

TEST(test_batches)
{
    enum { BATCHES = 3, M = 7, N = 8, K = 6 };
    /* Rows with gaps, and matrices with more. */
    struct view views[] = {
        {.memory = memory[0], .rank = 3, .shape = {BATCHES, M, K}},
        {.memory = memory[1], .rank = 3, .shape = {BATCHES, K, N}},
        {.memory = memory[1], .offset = 4096, .rank = 1, .shape = {N}},
        {.memory = memory[2], .rank = 3, .shape = {BATCHES, M, N}, .strides = {100, 12, 1}, .strided = true}};
    struct test_job t;

    for (unsigned i = 0; i < 3; i++)
        fill(memory[i], BYTES / sizeof(float), i + 1);
    make_linear(&t, views, LINEAR_ACTIVATION_GELU);
    step_copy_variant(t.step.variant, "activated");
    run_job(stream, &t);
    assert_int_equal(*wrong, 0);
    for (unsigned at = 0; at < BATCHES * M * N; at++) {
        const unsigned j = at % N, i = at / N % M, c = at / N / M;
        double x = (double)value(4096 + j, 2);

        for (unsigned l = 0; l < K; l++)
            x += (double)value((c * M + i) * K + l, 1) * (double)value((c * K + l) * N + j, 2);
        x = 0.5 * x * erfc(-x * 0.70710678118654752);
        assert_true(fabs((double)floats(memory[2])[c * 100 + i * 12 + j] - x) <= 2e-6 * (1 + fabs(x)));
    }
}

TEST(test_it_says_what_it_is_for)
{
    struct view views[] = {MATRIX(memory[0], 9, 5),
                           MATRIX(memory[1], 5, 8),
                           {.memory = memory[1], .offset = 4096, .rank = 1, .shape = {8}},
                           MATRIX(memory[2], 9, 8)};
    struct test_job t;
    struct error e;

    make_linear(&t, views, LINEAR_ACTIVATION_RELU);
    step_copy_variant(t.step.variant, "activated");
    assert_int_equal(backend->check(device, &t.step, &e), -1);
    assert_int_equal(e.code, ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(e.message, "gelu"));
    views[2] = (struct view){.memory = memory[1], .rank = 2, .shape = {9, 1}};
    make_linear(&t, views, LINEAR_ACTIVATION_GELU);
    step_copy_variant(t.step.variant, "activated");
    assert_int_equal(backend->check(device, &t.step, &e), -1);
    assert_non_null(strstr(e.message, "vector [n]"));
}

ALL_TESTS_WITH_LIBRARY(BYTES)

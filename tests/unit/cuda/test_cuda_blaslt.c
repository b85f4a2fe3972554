/* gemm and linear through cuBLASLt: which layouts it is given, how it is told about them, and when not. */
#include "blaslt_support.h"

#include <cublas_api.h>

enum { BYTES = 1 << 20 };

/* Runs out = 2·a·b + beta·out. That the product is right is for tests/conformance, which has this library, too. */
static void expect_product(const struct view *views, double beta, const char *variant)
{
    unsigned before = *products;
    struct test_job t;

    make_gemm(&t, views, 2.0, beta);
    run_job(stream, &t);
    assert_string_equal(t.step.variant_used, variant);
    assert_int_equal(*products > before, strcmp(variant, "cublaslt") == 0);
    assert_int_equal(*wrong, 0);
}

OPENING_TEST(test_every_orientation)
{
    const int64_t m = 5, n = 7, k = 3;

    for (unsigned bits = 0; bits < 16; bits++) {
        int64_t pad = bits & 8 ? 4 : 0; /* leading dimensions beyond the matrix */
        struct view views[] = {
            bits & 1 ? strided(0, 1, m, k, 1, m + pad) : strided(0, 1, m, k, k + pad, 1),
            bits & 2 ? strided(1, 2, k, n, 1, k + pad) : strided(1, 2, k, n, n + pad, 1),
            bits & 4 ? strided(2, 3, m, n, 1, m + pad) : strided(2, 3, m, n, n + pad, 1),
        };

        expect_product(views, bits & 1 ? 0.0 : 0.5, "cublaslt");
    }
}

OPENING_TEST(test_batches_and_what_it_cannot_express)
{
    static const struct {
        const char *what;
        unsigned rank;
        int64_t a[TENSOR_MAX_RANK], b[TENSOR_MAX_RANK], out[TENSOR_MAX_RANK], a_strides[TENSOR_MAX_RANK];
        double beta;
        const char *variant;
    } cases[] = {
        {"a batch", 3, {6, 4, 3}, {6, 3, 5}, {6, 4, 5}, {0}, 0.5, "cublaslt"},
        {"one matrix for all: more rows", 3, {6, 4, 3}, {1, 3, 5}, {6, 4, 5}, {0}, 0.5, "cublaslt"},
        {"whose rows do not follow each other", 3, {6, 4, 3}, {1, 3, 5}, {6, 4, 5}, {20, 3, 1}, 0.5, "cublaslt"},
        {"no single stride: several calls", 4, {2, 1, 4, 3}, {1, 3, 3, 5}, {2, 3, 4, 5}, {0}, 0.5, "cublaslt"},
        {"none of two", 5, {2, 1, 2, 4, 3}, {1, 3, 1, 3, 5}, {2, 3, 2, 4, 5}, {0}, 0.5, "cublaslt"},
        {"gaps", 2, {5, 3}, {3, 7}, {5, 7}, {10, 2}, 0, "tiled"},
        {"one row for all", 2, {5, 3}, {3, 7}, {5, 7}, {0, 1}, 0, "tiled"},
        {"no terms", 2, {5, 0}, {0, 7}, {5, 7}, {0}, 0.5, "tiled"},
        {"too many calls", 4, {17, 1, 2, 2}, {1, 18, 2, 2}, {17, 18, 2, 2}, {0}, 0, "tiled"},
    };
    struct view gaps[] = {strided(0, 0, 5, 3, 10, 2), MATRIX(memory[1], 3, 7), MATRIX(memory[2], 5, 7)};
    struct test_job t;

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct view views[3];

        print_message("%s\n", cases[i].what);
        for (unsigned v = 0; v < 3; v++) {
            views[v] = (struct view){.memory = memory[v], .rank = cases[i].rank};
            memcpy(views[v].shape, v == 0 ? cases[i].a : v == 1 ? cases[i].b : cases[i].out, sizeof(views[v].shape));
        }
        views[0].strided = cases[i].a_strides[cases[i].rank - 1] != 0;
        memcpy(views[0].strides, cases[i].a_strides, sizeof(views[0].strides));
        expect_product(views, cases[i].beta, cases[i].variant);
    }
    make_gemm(&t, gaps, 1.0, 0.0);
    step_copy_variant(t.step.variant, "cublaslt");
    MUST_FAIL(backend->check(device, &t.step, &e), ERROR_INVALID_ARGUMENT, "");
}

OPENING_TEST(test_the_second_request_asks_no_heuristic)
{
    struct view views[] = {MATRIX(memory[0], 11, 12), MATRIX(memory[1], 12, 13), MATRIX(memory[2], 11, 13)};
    unsigned before = *heuristics;
    struct test_job t;

    make_gemm(&t, views, 1.0, 0.0);
    assert_true(needs_prepare(&t)); /* it may block */
    run_job(stream, &t);
    assert_int_equal(*heuristics, before + 1);
    make_gemm(&t, views, 3.0, 0.5);
    assert_false(needs_prepare(&t));
    run_job(stream, &t);
    assert_int_equal(*heuristics, before + 1);

    /* Less aligned memory is another problem, another bias is not. */
    views[0].offset = 1;
    make_gemm(&t, views, 1.0, 0.0);
    assert_true(needs_prepare(&t));
    run_job(stream, &t);
    assert_int_equal(*heuristics, before + 2);
    for (unsigned i = 0; i < 2; i++) {
        const struct view linear[] = {
            views[0], views[1], {.memory = memory[1], .offset = 4096 + 1024 * i, .rank = 1, .shape = {13}}, views[2]};

        make_linear(&t, linear, LINEAR_ACTIVATION_RELU);
        run_job(stream, &t);
    }
    assert_int_equal(*heuristics, before + 3);
    assert_int_equal(*wrong, 0);
}

OPENING_TEST(test_many_shapes_keep_the_cache_bounded)
{
    unsigned before = *heuristics;
    struct test_job t;

    /* More shapes than plans are kept; the oldest is asked for anew, the newest is not. */
    for (int64_t n = 1; n <= 2100; n++) {
        struct view views[] = {MATRIX(memory[0], 1, 1), strided(1, 0, 1, n, n, 1), strided(2, 0, 1, n, n, 1)};

        make_gemm(&t, views, 1.0, 0.0);
        run_job(stream, &t);
    }
    assert_in_range(*heuristics - before, 2000, 2100);
    assert_false(needs_prepare(&t));
    make_gemm(&t, (struct view[]){MATRIX(memory[0], 1, 1), MATRIX(memory[1], 1, 3), MATRIX(memory[2], 1, 3)}, 1.0, 0.0);
    assert_true(needs_prepare(&t));
    run_job(stream, &t);
    assert_int_equal(*wrong, 0);
}

OPENING_TEST(test_f32_uses_tf32_only_when_allowed)
{
    struct view views[] = {MATRIX(memory[0], 5, 3), MATRIX(memory[1], 3, 7), MATRIX(memory[2], 5, 7)};
    struct test_job t;

    make_gemm(&t, views, 1.0, 0.0);
    run_job(stream, &t);
    assert_int_equal(*compute, CUBLAS_COMPUTE_32F);
    make_gemm(&t, views, 1.0, 0.0);
    t.step.plan.gemm.high_precision_only = false;
    run_job(stream, &t);
    assert_int_equal(*compute, CUBLAS_COMPUTE_32F_FAST_TF32);
}

OPENING_TEST(test_biases_and_activations)
{
    enum { NONE = LINEAR_ACTIVATION_NONE, RELU = LINEAR_ACTIVATION_RELU, GELU = LINEAR_ACTIVATION_GELU };
    static const struct {
        int64_t m, k, n, row, column; /* the last two: strides of out */
        unsigned activation;
        const char *forced, *variant;
        const char *why; /* it is refused */
        bool bias_of_rows;
    } cases[] = {
        {9, 5, 8, 8, 1, NONE, "", "cublaslt"},
        {9, 5, 8, 8, 1, RELU, "", "cublaslt"},
        {9, 5, 8, 8, 1, LINEAR_ACTIVATION_GELU_TANH, "", "cublaslt"},
        {9, 5, 8, 8, 1, GELU, "", "tiled"}, /* the library's gelu is the other one */
        {9, 5, 8, 8, 1, NONE, "", "tiled", .bias_of_rows = true},
        {9, 5, 8, 1, 9, NONE, "", "tiled"}, /* the library would add the bias to the wrong side */
        {256, 512, 256, 256, 1, GELU, "", "activated"},
        {256, 512, 256, 300, 1, GELU, "", "activated"},
        {256, 512, 256, 1, 256, GELU, "", "tiled"},
        {16, 512, 256, 256, 1, GELU, "", "skinny"},
        {9, 5, 8, 8, 1, GELU, "activated", "activated"},
        {9, 5, 8, 12, 1, GELU, "activated", "activated"},
        {1, 5, 8, 8, 1, GELU, "activated", "activated"},
        {9, 5, 8, 8, 1, RELU, "activated", .why = "gelu"},
        {9, 5, 8, 8, 1, GELU, "activated", .why = "vector [n]", .bias_of_rows = true},
    };

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const int64_t m = cases[i].m, k = cases[i].k, n = cases[i].n;
        struct view views[] = {MATRIX(memory[0], m, k), MATRIX(memory[1], k, n), VECTOR(memory[1], n),
                               strided(2, 0, m, n, cases[i].row, cases[i].column)};
        const unsigned before = *products;
        struct test_job t;
        bool by_library;

        if (cases[i].bias_of_rows)
            views[2] = MATRIX(memory[1], m, 1);
        views[2].offset = 4096;
        make_linear(&t, views, cases[i].activation);
        step_copy_variant(t.step.variant, cases[i].forced);
        if (cases[i].why) {
            MUST_FAIL(backend->check(device, &t.step, &e), ERROR_INVALID_ARGUMENT, cases[i].why);
            continue;
        }
        run_job(stream, &t);
        by_library = !strcmp(cases[i].variant, "cublaslt") || !strcmp(cases[i].variant, "activated");
        if (strcmp(t.step.variant_used, cases[i].variant) != 0 || (*products > before) != by_library || *wrong)
            fail_msg("case %u: %s, not %s", i, t.step.variant_used, cases[i].variant);
    }
}

OPENING_TEST(test_no_algorithm_means_tiled)
{
    struct view views[] = {MATRIX(memory[0], 21, 22), MATRIX(memory[1], 22, 23), MATRIX(memory[2], 21, 23)};
    unsigned before = *heuristics;
    struct test_job t;

    setenv("FAKE_BLASLT", "none", 1);
    expect_product(views, 0.0, "tiled");
    assert_int_equal(*heuristics, before + 1);
    make_gemm(&t, views, 1.0, 0.0);
    assert_false(needs_prepare(&t)); /* that there is none is remembered, too */
    step_copy_variant(t.step.variant, "cublaslt");
    run_failing(stream, &t, ERROR_UNSUPPORTED);
    unsetenv("FAKE_BLASLT");
}

OPENING_TEST(test_no_memory_for_a_workspace_means_tiled)
{
    struct view views[] = {MATRIX(memory[0], 5, 3), MATRIX(memory[1], 3, 7), MATRIX(memory[2], 5, 7)};
    struct backend_stream *fresh = stream_open();
    struct test_job t;

    expect_product(views, 0.0, "cublaslt");
    make_gemm(&t, views, 1.0, 0.0);
    inject("cuMemAllocFromPoolAsync", 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
    run_job(fresh, &t);
    assert_string_equal(t.step.variant_used, "tiled");

    make_gemm(&t, views, 1.0, 0.0);
    step_copy_variant(t.step.variant, "cublaslt");
    inject("cuMemAllocFromPoolAsync", 2 /* CUDA_ERROR_OUT_OF_MEMORY */, false);
    run_failing(fresh, &t, ERROR_OUT_OF_MEMORY);
}

/* The library has no word for that; the job's error is the driver's. Last: nothing works after it. */
OPENING_TEST(test_a_broken_context_is_the_drivers_error)
{
    struct view views[] = {MATRIX(memory[0], 5, 3), MATRIX(memory[1], 3, 7), MATRIX(memory[2], 5, 7)};
    struct test_job t;

    make_gemm(&t, views, 1.0, 0.0);
    run_job(stream, &t);
    make_gemm(&t, views, 1.0, 0.0);
    inject("cuStreamSynchronize", 700 /* CUDA_ERROR_ILLEGAL_ADDRESS */, true);
    run_failing(stream, &t, ERROR_DEVICE_LOST);
    assert_string_equal(t.job.error.details[0].text, "CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_true(t.job.started_ns != 0);
}

ALL_TESTS_WITH_LIBRARY(BYTES)

/* scaled_gemm: which products cuBLASLt is given, how it is told of their scales, and that others are our own kernel's.
 */
#include "blaslt_support.h"

#include <stdlib.h>
#include <string.h>

enum {
    BYTES = 1 << 16,
    SCALES = 8192 /* the first scale of a, in floats of memory 1; then those of b */,
    M = 32,
    N = 64,
    K = 48
};

static int open_plenty(void **state)
{
    return open_with_library(BYTES);
}

/* Operands of a product: a is M × K by rows, b K × N by columns, the scales are numbers. */
static void make_views(struct view views[5], enum dtype a, enum dtype b)
{
    views[0] = (struct view){.memory = memory[0], .rank = 2, .shape = {M, K}, .dtype = a};
    views[1] =
        (struct view){.memory = memory[1], .rank = 2, .shape = {K, N}, .strides = {1, K}, .strided = true, .dtype = b};
    views[2] = (struct view){.memory = memory[1], .offset = SCALES};
    views[3] = (struct view){.memory = memory[1], .offset = SCALES + 4096};
    views[4] = MATRIX(memory[2], M, N);
}

/* Runs it, with out of f32. That the product is right is for tests/conformance, which has this library, too. */
static void expect(const struct view *views, unsigned precision, const char *variant)
{
    const unsigned before = *products;
    struct test_job t;

    make_job(&t, OP_SCALED_GEMM, views);
    t.step.plan.gemm.all_in_f32 = precision == SCALED_GEMM_PRECISION_HIGHEST;
    t.step.plan.gemm.fast_sums = precision == SCALED_GEMM_PRECISION_MEDIUM;
    run_job(stream, &t);
    assert_string_equal(t.step.variant_used, variant);
    assert_int_equal(*products > before, strcmp(variant, "cublaslt") == 0);
    assert_int_equal(*wrong, 0);
}

TEST(test_numbers_and_vectors)
{
    struct view views[5];
    unsigned before = *heuristics;

    make_views(views, DTYPE_F8_E4M3, DTYPE_F8_E4M3);
    expect(views, SCALED_GEMM_PRECISION_HIGH, "cublaslt");
    assert_int_equal(*fast_sums, 0);
    views[2].offset += 3;
    views[3].offset += 2; /* other scales of the same plan */
    expect(views, SCALED_GEMM_PRECISION_HIGH, "cublaslt");
    assert_int_equal(*heuristics, before + 1);
    expect(views, SCALED_GEMM_PRECISION_MEDIUM, "cublaslt");
    assert_int_equal(*fast_sums, 1);
    expect(views, SCALED_GEMM_PRECISION_HIGHEST, "tiled");

    make_views(views, DTYPE_F8_E4M3, DTYPE_F8_E4M3);
    views[2].rank = 2;
    views[2].shape[0] = M;
    views[2].shape[1] = 1;
    expect(views, SCALED_GEMM_PRECISION_HIGH, "tiled"); /* one is a number, the other a vector */
    views[3].rank = 1;
    views[3].shape[0] = N;
    expect(views, SCALED_GEMM_PRECISION_HIGH, "cublaslt");
    views[3].offset++; /* not aligned */
    expect(views, SCALED_GEMM_PRECISION_HIGH, "tiled");
    views[3].offset--;
    views[3].strided = true;
    views[3].strides[0] = 2;
    expect(views, SCALED_GEMM_PRECISION_HIGH, "tiled");
}

/* Two vectors of scales, as matrices. */
static void set_vectors(struct view views[5], int64_t rows)
{
    views[2].rank = views[3].rank = 2;
    views[2].shape[0] = rows;
    views[2].shape[1] = views[3].shape[0] = 1;
    views[3].shape[1] = N;
}

TEST(test_dtypes)
{
    struct view views[5];

    make_views(views, DTYPE_F8_E5M2, DTYPE_F8_E4M3);
    expect(views, SCALED_GEMM_PRECISION_HIGH, "cublaslt");
    make_views(views, DTYPE_F8_E5M2, DTYPE_F8_E5M2);
    expect(views, SCALED_GEMM_PRECISION_HIGH, "tiled");
}

TEST(test_layouts)
{
    struct view views[5];

    make_views(views, DTYPE_F8_E4M3, DTYPE_F8_E5M2);
    views[4].strided = true; /* by columns: the library computes it as it is, not transposed */
    views[4].strides[0] = 1;
    views[4].strides[1] = M;
    set_vectors(views, M);
    expect(views, SCALED_GEMM_PRECISION_HIGH, "cublaslt");

    make_views(views, DTYPE_F8_E4M3, DTYPE_F8_E5M2);
    views[1].strided = false; /* by rows */
    expect(views, SCALED_GEMM_PRECISION_HIGH, "tiled");
    make_views(views, DTYPE_F8_E4M3, DTYPE_F8_E5M2);
    views[0].strided = true; /* by columns */
    views[0].strides[0] = 1;
    views[0].strides[1] = M;
    expect(views, SCALED_GEMM_PRECISION_HIGH, "tiled");
    make_views(views, DTYPE_F8_E4M3, DTYPE_F8_E5M2);
    views[0].offset = 1;
    expect(views, SCALED_GEMM_PRECISION_HIGH, "tiled");
    make_views(views, DTYPE_F8_E4M3, DTYPE_F8_E5M2);
    views[0].shape[1] = views[1].shape[0] = 40; /* not whole pieces of 16 */
    expect(views, SCALED_GEMM_PRECISION_HIGH, "tiled");
    make_views(views, DTYPE_F8_E4M3, DTYPE_F8_E5M2);
    views[1].shape[1] = views[4].shape[1] = 40;
    expect(views, SCALED_GEMM_PRECISION_HIGH, "tiled");
    make_views(views, DTYPE_F8_E4M3, DTYPE_F8_E5M2);
    views[0].shape[0] = views[4].shape[0] = 3; /* rows may be any number */
    expect(views, SCALED_GEMM_PRECISION_HIGH, "cublaslt");
}

/* a is 3 matrices that follow each other, b one. */
static void make_batch(struct view views[5])
{
    make_views(views, DTYPE_F8_E4M3, DTYPE_F8_E4M3);
    views[0].rank = views[4].rank = 3;
    views[0].shape[0] = views[4].shape[0] = 3;
    views[0].shape[1] = views[4].shape[1] = M;
    views[0].shape[2] = K;
    views[4].shape[2] = N;
}

TEST(test_batches)
{
    struct view views[5];

    make_batch(views);
    expect(views, SCALED_GEMM_PRECISION_HIGH, "cublaslt"); /* as one product of 3 · M rows */
    views[3].rank = 1;
    views[3].shape[0] = N;
    views[2].rank = 3;
    views[2].shape[0] = 3;
    views[2].shape[1] = M;
    views[2].shape[2] = 1;
    expect(views, SCALED_GEMM_PRECISION_HIGH, "cublaslt"); /* so are their scales */
    views[2].rank = 2;                                     /* the same scales for each of them: no vector of 3 · M */
    views[2].shape[0] = M;
    views[2].shape[1] = 1;
    expect(views, SCALED_GEMM_PRECISION_HIGH, "cublaslt");
    make_batch(views);
    views[2].rank = 3;
    views[2].shape[0] = 3; /* one number for each matrix */
    views[2].shape[1] = views[2].shape[2] = 1;
    expect(views, SCALED_GEMM_PRECISION_HIGH, "tiled");
}

/* A library that does not know scales that are vectors: it is asked once, and not for an algorithm. */
TEST(test_older_libraries)
{
    struct view views[5];
    struct test_job t;
    unsigned before;

    setenv("KOPS_STANDIN_BLASLT", "numbers", 1);
    make_views(views, DTYPE_F8_E4M3, DTYPE_F8_E4M3);
    views[0].shape[0] = views[4].shape[0] = 48;
    expect(views, SCALED_GEMM_PRECISION_HIGH, "cublaslt");
    before = *heuristics;
    set_vectors(views, 48);
    expect(views, SCALED_GEMM_PRECISION_HIGH, "tiled");
    make_job(&t, OP_SCALED_GEMM, views);
    assert_false(backend->needs_prepare(device, &t.job));
    assert_int_equal(*heuristics, before);
    unsetenv("KOPS_STANDIN_BLASLT");
}

TEST(test_what_it_cannot_do_is_an_error_where_it_is_forced)
{
    struct view views[5];
    struct test_job t;
    struct error e;

    make_views(views, DTYPE_F8_E5M2, DTYPE_F8_E5M2);
    make_job(&t, OP_SCALED_GEMM, views);
    step_copy_variant(t.step.variant, "cublaslt");
    assert_int_equal(backend->check(device, &t.step, &e), -1);
    assert_int_equal(e.code, ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(e.message, "f8_e5m2 by f8_e5m2"));
}

ALL_TESTS_WITH(open_plenty, close_all)

/* scaled_gemm: which products cuBLASLt is given, how it is told of their scales, and that others are our own kernel's.
 */
#include "blaslt_support.h"

enum {
    BYTES = 1 << 16,
    SCALES = 8192 /* the first scale of a, in floats of memory 1; then those of b */,
    M = 32,
    N = 64,
    K = 48
};

/* A product of e4m3 into f32, from left to right: a is M x K by rows, b K x N by columns, scales are numbers. */
struct product {
    const char *what;
    enum dtype a, b; /* 0: e4m3 */
    int64_t m, n, k; /* 0: as above */
    int64_t batch;   /* of a and out; 0: no batch */
    bool a_by_columns, b_by_rows, out_by_columns;
    struct view scales[2]; /* rank 0: a number */
    uint64_t a_offset;
    bool all_in_f32, fast_sums;
    const char *variant;
};

#define OF_ROWS                                                                                                        \
    {                                                                                                                  \
        .rank = 2, .shape = { M, 1 }                                                                                   \
    }
#define OF_COLUMNS                                                                                                     \
    {                                                                                                                  \
        .rank = 1, .shape = { N }                                                                                      \
    }

static const struct product cases[] = {
    {"numbers", .variant = "cublaslt"},
    {"fast sums", .fast_sums = true, .variant = "cublaslt"},
    {"all in f32", .all_in_f32 = true, .variant = "tiled"},
    {"a vector and a number", .scales = {OF_ROWS}, .variant = "tiled"},
    {"vectors", .scales = {OF_ROWS, OF_COLUMNS}, .variant = "cublaslt"},
    {"vectors, one not aligned", .scales = {OF_ROWS, {.rank = 1, .shape = {N}, .offset = 1}}, .variant = "tiled"},
    {"vectors, one with gaps", .scales = {OF_ROWS, {.rank = 1, .shape = {N}, .strided = true, .strides = {2}}},
     .variant = "tiled"},
    {"e5m2 by e4m3", .a = DTYPE_F8_E5M2, .variant = "cublaslt"},
    {"e5m2 by e5m2", .a = DTYPE_F8_E5M2, .b = DTYPE_F8_E5M2, .variant = "tiled"},
    {"out by columns: computed as it is, not transposed", .out_by_columns = true,
     .scales = {OF_ROWS, {.rank = 2, .shape = {1, N}}}, .variant = "cublaslt"},
    {"b by rows", .b = DTYPE_F8_E5M2, .b_by_rows = true, .variant = "tiled"},
    {"a by columns", .b = DTYPE_F8_E5M2, .a_by_columns = true, .variant = "tiled"},
    {"a not aligned", .b = DTYPE_F8_E5M2, .a_offset = 1, .variant = "tiled"},
    {"k not in whole pieces of 16", .b = DTYPE_F8_E5M2, .k = 40, .variant = "tiled"},
    {"n not in whole pieces of 16", .b = DTYPE_F8_E5M2, .n = 40, .variant = "tiled"},
    {"rows may be any number", .b = DTYPE_F8_E5M2, .m = 3, .variant = "cublaslt"},
    {"a batch, as one product of 3 M rows", .batch = 3, .variant = "cublaslt"},
    {"a batch and its scales", .batch = 3, .scales = {{.rank = 3, .shape = {3, M, 1}}, OF_COLUMNS},
     .variant = "cublaslt"},
    {"the same scales for each of a batch: no vector of 3 M", .batch = 3, .scales = {OF_ROWS, OF_COLUMNS},
     .variant = "cublaslt"},
    {"one number for each of a batch", .batch = 3, .scales = {{.rank = 3, .shape = {3, 1, 1}}}, .variant = "tiled"},
};

static void set_matrix(struct view *v, int64_t batch, int64_t rows, int64_t columns, bool by_columns)
{
    *v = (struct view){.rank = batch ? 3 : 2, .strided = by_columns, .strides = {1, rows}};
    v->shape[0] = batch;
    v->shape[v->rank - 2] = rows;
    v->shape[v->rank - 1] = columns;
}

static void make_views(struct view views[5], const struct product *p)
{
    const int64_t m = p->m ? p->m : M, n = p->n ? p->n : N, k = p->k ? p->k : K;

    set_matrix(&views[0], p->batch, m, k, p->a_by_columns);
    set_matrix(&views[1], 0, k, n, !p->b_by_rows);
    set_matrix(&views[4], p->batch, m, n, p->out_by_columns);
    views[0].dtype = p->a ? p->a : DTYPE_F8_E4M3;
    views[1].dtype = p->b ? p->b : DTYPE_F8_E4M3;
    views[0].offset = p->a_offset;
    for (unsigned i = 0; i < 2; i++) {
        views[2 + i] = p->scales[i];
        views[2 + i].offset += SCALES + 4096 * i;
    }
    for (unsigned i = 0; i < 5; i++)
        views[i].memory = memory[i == 0 ? 0 : i < 4 ? 1 : 2];
}

/* That the product is right is for tests/conformance, which has this library, too. */
static void run(const struct product *p, const struct view *views)
{
    const unsigned before = *products;
    struct test_job t;

    make_job(&t, OP_SCALED_GEMM, views);
    t.step.plan.gemm.all_in_f32 = p->all_in_f32;
    t.step.plan.gemm.fast_sums = p->fast_sums;
    run_job(stream, &t);
    if (strcmp(t.step.variant_used, p->variant) != 0 || (*products > before) != (strcmp(p->variant, "cublaslt") == 0) ||
        *wrong)
        fail_msg("%s: %s, not %s", p->what, t.step.variant_used, p->variant);
}

TEST(test_who_computes)
{
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct view views[5];

        make_views(views, &cases[i]);
        run(&cases[i], views);
        if (strcmp(cases[i].variant, "cublaslt") == 0)
            assert_int_equal(*fast_sums, cases[i].fast_sums);
    }
}

TEST(test_other_scales_have_the_same_plan)
{
    static const struct product p = {"wide", .m = 64, .variant = "cublaslt"};
    const unsigned before = *heuristics;
    struct view views[5];

    make_views(views, &p);
    run(&p, views);
    views[2].offset += 3;
    views[3].offset += 2;
    run(&p, views);
    assert_int_equal(*heuristics, before + 1);
}

/* A library that does not know scales that are vectors: it is asked once, and not for an algorithm. */
TEST(test_older_libraries)
{
    static const struct product numbers = {"numbers", .m = 48, .variant = "cublaslt"},
                                vectors = {"vectors", .m = 48, .scales = {{.rank = 2, .shape = {48, 1}}, OF_COLUMNS},
                                           .variant = "tiled"};
    struct view views[5];
    struct test_job t;
    unsigned before;

    setenv("KOPS_STANDIN_BLASLT", "numbers", 1);
    make_views(views, &numbers);
    run(&numbers, views);
    before = *heuristics;
    make_views(views, &vectors);
    run(&vectors, views);
    make_job(&t, OP_SCALED_GEMM, views);
    assert_false(needs_prepare(&t));
    assert_int_equal(*heuristics, before);
    unsetenv("KOPS_STANDIN_BLASLT");
}

TEST(test_what_it_cannot_do_is_an_error_where_it_is_forced)
{
    static const struct product p = {"e5m2", .a = DTYPE_F8_E5M2, .b = DTYPE_F8_E5M2};
    struct view views[5];
    struct test_job t;

    make_views(views, &p);
    make_job(&t, OP_SCALED_GEMM, views);
    step_copy_variant(t.step.variant, "cublaslt");
    MUST_FAIL(backend->check(device, &t.step, &e), ERROR_INVALID_ARGUMENT, "f8_e5m2 by f8_e5m2");
}

ALL_TESTS_WITH_LIBRARY(BYTES)

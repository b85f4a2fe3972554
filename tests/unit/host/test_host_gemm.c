/* gemm: every variant and dtype against sums in f64, within the declared tolerances, where blocks and threads meet;
 * other products are for tests/conformance. Our own loops for each instruction set. */
#include <math.h>

#include "kernels.h"
#include "support.h"

/* |got − ref| ≤ rtol·|ref| + scaled·S + atol, as proto/ops/gemm.json declares. */
static double tolerance(enum dtype dtype, double ref, double scale)
{
    switch (dtype) {
    case DTYPE_F32:
        return 1.2e-7 * fabs(ref) + 2e-5 * scale;
    case DTYPE_F64:
        return 2.3e-16 * fabs(ref) + 4e-14 * scale;
    case DTYPE_F16:
        return 9.8e-4 * fabs(ref) + 2e-5 * scale + 6e-8;
    default:
        return 7.9e-3 * fabs(ref) + 2e-5 * scale;
    }
}

struct product {
    int64_t m, n, k;
    enum layout a, b, out;
    double alpha, beta;
    int64_t batch; /* 0: none; a negative one: b has none and is used for each */
    bool biased;   /* linear: alpha·a·b + a bias of each element, and no less than 0 */
};

static struct operand make(enum dtype dtype, int64_t batch, int64_t rows, int64_t columns, enum layout layout)
{
    const int64_t shape[] = {batch, rows, columns};
    struct operand o;

    operand_init(&o, dtype, batch ? 3 : 2, batch ? shape : shape + 1, layout);
    return o;
}

static struct operand plain(int64_t rows, int64_t columns)
{
    return make(DTYPE_F32, 0, rows, columns, CONTIGUOUS);
}

/* The operand's elements of one batch as rows of `columns`. */
static double *matrix(const struct operand *o, int64_t batch, int64_t rows, int64_t columns)
{
    double *values = malloc((size_t)(rows * columns + 1) * sizeof(*values));

    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = operand_get_before(o, (uint64_t)((o->tensor.rank == 3 ? batch : 0) * rows * columns + i));
    return values;
}

static void check_matrix(const struct product *p, int64_t batch, const double *a, const double *b,
                         const struct operand *bias, const struct operand *out)
{
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            const uint64_t at = (uint64_t)((batch * p->m + i) * p->n + j);
            double ref = 0, scale = 0, got = operand_get(out, at);

            for (int64_t r = 0; r < p->k; r++) {
                ref += a[i * p->k + r] * b[r * p->n + j];
                scale += fabs(a[i * p->k + r] * b[r * p->n + j]);
            }
            ref *= p->alpha;
            scale *= fabs(p->alpha);
            if (p->beta != 0 || bias) {
                const double more = bias ? operand_get(bias, at) : p->beta * operand_get_before(out, at);

                ref += more;
                scale += fabs(more);
            }
            if (bias)
                ref = fmax(ref, 0);
            if (!(fabs(got - ref) <= tolerance(out->tensor.dtype, ref, scale)))
                fail_msg("%s %lldx%lldx%lld at [%lld, %lld, %lld]: %g, not %g", dtype_name(out->tensor.dtype),
                         (long long)p->m, (long long)p->n, (long long)p->k, (long long)batch, (long long)i,
                         (long long)j, got, ref);
        }
}

static void check_product(const struct product *p, const struct operand *a, const struct operand *b,
                          const struct operand *bias, const struct operand *out)
{
    for (int64_t q = 0; q < (p->batch ? llabs(p->batch) : 1); q++) {
        double *left = matrix(a, q, p->m, p->k), *right = matrix(b, q, p->k, p->n);

        check_matrix(p, q, left, right, bias, out);
        free(left);
        free(right);
    }
    operand_check_surroundings(out);
}

static void run_product(struct fixture *f, enum dtype dtype, const char *variant, const struct product *p)
{
    const union op_attr_value attrs[OP_MAX_ATTRS] = {[GEMM_ALPHA] = {.f = p->alpha}, [GEMM_BETA] = {.f = p->beta}};
    const union op_attr_value linear[OP_MAX_ATTRS] = {
        [LINEAR_ALPHA] = {.f = p->alpha}, [LINEAR_ACTIVATION] = {.choice = LINEAR_ACTIVATION_RELU}};
    const int64_t batch = llabs(p->batch);
    const unsigned open = opened_so_far();
    struct operand a = make(dtype, batch, p->m, p->k, p->a);
    struct operand b = make(dtype, p->batch < 0 ? 0 : batch, p->k, p->n, p->b);
    struct operand out = make(dtype, batch, p->m, p->n, p->out), bias = make(dtype, 0, p->m, p->n, STRIDED);
    struct backend_job job;

    if (p->beta == 0) /* what it held must not show */
        for (uint64_t i = 0; i < out.tensor.count; i++)
            encode(dtype, (double)NAN, operand_at(&out, i));
    job_init(&job, p->biased ? OP_LINEAR : OP_GEMM, (struct operand *[]){&a, &b, &bias}, &out,
             p->biased ? linear : attrs);
    step_copy_variant(job.steps->variant, variant);
    job_run(f, &job);
    if (job.failed)
        fail_msg("%s", job.error.message);
    assert_string_equal(job.steps->variant_used, variant);
    check_product(p, &a, &b, p->biased ? &bias : NULL, &out);
    close_since(open);
}

/* Longer and wider than the blocks that operands are copied in, by more threads than there are processors. */
OPENING_TEST(test_products)
{
    static const struct product products[] = {
        {100, 90, 513, .alpha = 1},
        {24, 64, 1100, .alpha = 1},
        {3, 5, 2100, .a = STRIDED, .alpha = 1},
        {1100, 4, 9, .out = STRIDED, .alpha = 1, .beta = 1},
        {520, 70, 515, .a = TRANSPOSED, .out = SLICE, .alpha = 1, .beta = 1},
        {4, 1100, 9, .b = STRIDED, .alpha = 1},
        {20, 10, 30, .batch = -6, .alpha = 1},
        {40, 500, 30, .alpha = 1, .batch = 7},
        /* nothing to add up: out = beta·out */
        {5, 7, 3, .out = TRANSPOSED, .alpha = 0},
        {5, 7, 3, .alpha = 0, .beta = -2},
        /* several tiles, and each takes its own part of the bias; out runs along its rows or its columns */
        {150, 530, 20, .alpha = 0.5, .biased = true},
        {150, 530, 20, .out = TRANSPOSED, .alpha = 0.5, .biased = true},
    };
    struct fixture f = fixture_open(&(struct backend_config){.host_threads = 7});

    for (unsigned d = 0; d < COUNT(all_dtypes); d++)
        for (const char *const *v = host_backend.variants(f.device, op_get(OP_GEMM), all_dtypes[d]); *v; v++)
            for (size_t i = 0; i < COUNT(products); i++)
                run_product(&f, all_dtypes[d], *v, &products[i]);
}

/* A repeated row (stride 0) and overlapping rows (a stride below the row's length) are inputs like others. */
OPENING_TEST(test_repeated_and_overlapping_rows)
{
    struct fixture f = fixture_open(NULL);

    for (const char *const *v = host_backend.variants(f.device, op_get(OP_GEMM), DTYPE_F32); *v; v++)
        for (int64_t row = 0; row < 2; row++)
            for (int64_t column = 0; column < 2; column++) {
                struct operand a = plain(40, 40), b = plain(40, 40), out = plain(40, 40);
                struct backend_job job;

                a.tensor.strides[0] = row;
                a.tensor.strides[1] = column;
                job_init(&job, OP_GEMM, (struct operand *[]){&a, &b}, &out, NULL);
                step_copy_variant(job.steps->variant, *v);
                job_run(&f, &job);
                assert_false(job.failed);
                check_product(&(struct product){40, 40, 40, .alpha = 1}, &a, &b, NULL, &out);
            }
}

static void run_tiny(struct fixture *f, const char *variant, struct backend_job *job)
{
    struct operand a = plain(2, 2), b = plain(2, 2), out = plain(2, 2);

    job_init(job, OP_GEMM, (struct operand *[]){&a, &b}, &out, NULL);
    step_copy_variant(job->steps->variant, variant);
    job_run(f, job);
}

/* Without libraries, or with ones that do not load, gemm runs on our own loops, unless the library was asked for. */
OPENING_TEST(test_no_libraries)
{
    static const char *const missing[] = {"/nonexistent/libopenblas.so.0", "/nonexistent/libdnnl.so.2"};
    static const char *const names[] = {"openblas", "onednn"};
    struct backend_job job;
    struct fixture f = fixture_open(&(struct backend_config){.host_blas = "none", .host_onednn = "none"});

    assert_string_equal(host_backend.variants(f.device, op_get(OP_GEMM), DTYPE_F32)[0], "blocked");
    run_tiny(&f, NULL, &job);
    assert_false(job.failed);
    assert_string_equal(job.steps->variant_used, "blocked");

    f = fixture_open(&(struct backend_config){.host_blas = missing[0], .host_onednn = missing[1]});
    for (unsigned i = 0; i < 20; i++) {
        run_tiny(&f, NULL, &job);
        assert_false(job.failed);
        assert_string_equal(job.steps->variant_used, "blocked");
    }
    for (unsigned i = 0; i < COUNT(names); i++) {
        run_tiny(&f, names[i], &job);
        assert_true(job.failed);
        assert_int_equal(job.error.code, ERROR_UNSUPPORTED);
        assert_non_null(strstr(job.error.message, missing[i]));
    }
}

/* ---- the choice ---- */

static bool is_listed(struct fixture *f, enum dtype dtype, const char *variant)
{
    for (const char *const *v = host_backend.variants(f->device, op_get(OP_GEMM), dtype); *v; v++)
        if (!strcmp(*v, variant))
            return true;
    return false;
}

static const struct product of_a_client = {130, 110, 120, .alpha = 1.5, .beta = -1};
static const union op_attr_value attrs_of_a_client[OP_MAX_ATTRS] = {[GEMM_ALPHA] = {.f = 1.5}, [GEMM_BETA] = {.f = -1}};

/* Executions of a client who names no variant: all are right. How many this one has computed. */
static unsigned turns_of(struct fixture *f, enum dtype dtype, unsigned executions, const char *variant)
{
    const struct product *p = &of_a_client;
    struct operand a = make(dtype, 0, p->m, p->k, CONTIGUOUS), b = make(dtype, 0, p->k, p->n, CONTIGUOUS),
                   out = make(dtype, 0, p->m, p->n, CONTIGUOUS);
    unsigned turns = 0;
    struct backend_job job;

    for (unsigned i = 0; i < executions; i++) {
        job_init(&job, OP_GEMM, (struct operand *[]){&a, &b}, &out, attrs_of_a_client);
        job_run(f, &job);
        assert_false(job.failed);
        assert_true(is_listed(f, dtype, job.steps->variant_used));
        turns += !strcmp(job.steps->variant_used, variant);
        check_product(p, &a, &b, NULL, &out);
        memcpy(out.memory.host, out.before, out.memory.size);
    }
    return turns;
}

/* A oneDNN that does not compute is found out at its first turn, whose product another way computes. */
OPENING_TEST(test_each_turn_is_right)
{
    struct fixture f = fixture_open(&(struct backend_config){.host_blas = "none", .host_onednn = KOPS_REFUSING_DNNL});
    struct backend_job job;

    assert_int_equal(turns_of(&f, DTYPE_F32, 20, "onednn"), 1);
    run_tiny(&f, "onednn", &job);
    assert_true(job.failed);
    assert_int_equal(job.error.code, ERROR_UNSUPPORTED);
    f = fixture_open(NULL);
    for (unsigned d = 0; d < COUNT(all_dtypes); d++)
        turns_of(&f, all_dtypes[d], 40, "");
}

/* ---- our own loops ---- */

static void check_multiply(const struct kernels *kernels, enum dtype dtype, size_t m, size_t n, size_t k)
{
    const unsigned open = opened_so_far();
    struct operand a = make(dtype, 0, (int64_t)m, (int64_t)k, CONTIGUOUS),
                   b = make(dtype, 0, (int64_t)k, (int64_t)n, CONTIGUOUS),
                   out = make(dtype, 0, (int64_t)m, (int64_t)n, CONTIGUOUS);
    const struct product p = {(int64_t)m, (int64_t)n, (int64_t)k, .alpha = 1, .beta = 1};
    struct operand *const all[] = {&a, &b, &out};

    for (unsigned i = 0; i < COUNT(all); i++)
        memcpy(all[i]->before, all[i]->memory.host, all[i]->memory.size);
    kernels->multiply[dtype](operand_at(&out, 0), operand_at(&a, 0), operand_at(&b, 0), m, n, k);
    check_product(&p, &a, &b, NULL, &out);
    close_since(open);
}

OPENING_TEST(test_loops_of_each_instruction_set)
{
    static const size_t sizes[][3] = {{1, 1, 1},    {4, 32, 7},   {5, 33, 256}, {7, 95, 257},
                                      {9, 64, 600}, {3, 31, 255}, {64, 128, 1}, {13, 70, 30}};

    for (int isa = 0; isa < CPU_ISAS; isa++)
        for (size_t i = 0; kernels_get((enum cpu_isa)isa) && i < COUNT(sizes); i++) {
            check_multiply(kernels_get((enum cpu_isa)isa), DTYPE_F32, sizes[i][0], sizes[i][1], sizes[i][2]);
            check_multiply(kernels_get((enum cpu_isa)isa), DTYPE_F64, sizes[i][0], sizes[i][1], sizes[i][2]);
        }
}

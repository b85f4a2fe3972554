/* gemm through CBLAS. A product that the BLAS takes as it is goes in one call. Any other (f16, bf16, strides in both
 * dimensions, sizes beyond an int) is computed by blocks that are copied to f32 or f64 first, so scratch is bounded. */
#include <limits.h>

#include "gemm.h"

enum {
    BLOCK = 1024,           /* edge of a copied block */
    LEAST_EDGE = 1536,      /* of a block that is used in place, but where the matrix ends */
    LEAST_DEPTH = 4096,     /* along k */
    EDGE_UNIT = 64,         /* its edges are multiples of it */
    PACK_BYTES = 64 << 10,  /* copied by a thread at a time */
    SMALL = 160 * 160 * 160 /* m·n·k of products that are worth a thread each, not several */
};

/* A library's call cannot be stopped, so products are cut where a call would take longer than some 100 ms. */
static const double CALL_FLOPS_A_THREAD = 4e9;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void multiply(const struct blas *blas, enum dtype dtype, int64_t m, int64_t n, int64_t k, double alpha,
                     const struct cblas_matrix *a, const struct cblas_matrix *b, double beta,
                     const struct cblas_matrix *out)
{
    const int trans_a = a->transposed ? BLAS_TRANS : BLAS_NO_TRANS,
              trans_b = b->transposed ? BLAS_TRANS : BLAS_NO_TRANS;

    if (dtype == DTYPE_F64)
        blas->dgemm(BLAS_ROW_MAJOR, trans_a, trans_b, (int)m, (int)n, (int)k, alpha, a->at, a->ld, b->at, b->ld, beta,
                    out->at, out->ld);
    else
        blas->sgemm(BLAS_ROW_MAJOR, trans_a, trans_b, (int)m, (int)n, (int)k, (float)alpha, a->at, a->ld, b->at, b->ld,
                    (float)beta, out->at, out->ld);
}

/* ---- matrix times vector, several times faster than as a product with one column ---- */

/* y[rows] = alpha·x[rows×columns]·v + beta·y. */
static bool multiply_vector(const struct gemm_call *call, const struct blas *blas, const struct gemm_problem *g,
                            const struct gemm_matrix *x, int64_t rows, int64_t columns, const unsigned char *v,
                            int64_t v_step, unsigned char *y, int64_t y_step)
{
    struct cblas_matrix stored;
    int trans, stored_rows, stored_columns;

    v_step = columns == 1 ? 1 : v_step;
    y_step = rows == 1 ? 1 : y_step;
    if (v_step < 1 || v_step > INT_MAX || y_step < 1 || y_step > INT_MAX || rows > INT_MAX || columns > INT_MAX ||
        !gemm_as_cblas(x, rows, columns, &stored))
        return false;
    /* Some libraries scale y by 0 where they should write it, which keeps its NaNs. */
    if (g->beta == 0) {
        static const double zero;

        call->kernels->store[g->dtype](y, y_step, 1, &zero, 0, (size_t)rows, 1, 0, 0);
    }
    trans = stored.transposed ? BLAS_TRANS : BLAS_NO_TRANS;
    stored_rows = (int)(stored.transposed ? columns : rows);
    stored_columns = (int)(stored.transposed ? rows : columns);
    if (g->dtype == DTYPE_F64)
        blas->dgemv(BLAS_ROW_MAJOR, trans, stored_rows, stored_columns, g->alpha, stored.at, stored.ld,
                    (const double *)v, (int)v_step, g->beta, (double *)y, (int)y_step);
    else
        blas->sgemv(BLAS_ROW_MAJOR, trans, stored_rows, stored_columns, (float)g->alpha, stored.at, stored.ld,
                    (const float *)v, (int)v_step, (float)g->beta, (float *)y, (int)y_step);
    return true;
}

static bool try_vector(const struct gemm_call *call, const struct blas *blas, const struct gemm_problem *g)
{
    if (g->n == 1)
        return multiply_vector(call, blas, g, &g->a, g->m, g->k, g->b.at, g->b.row, g->out.at, g->out.row);
    if (g->m == 1) {
        struct gemm_matrix transposed = {g->b.at, g->b.column, g->b.row};

        return multiply_vector(call, blas, g, &transposed, g->n, g->k, g->a.at, g->a.column, g->out.at, g->out.column);
    }
    return false;
}

/* ---- one call ---- */

static double call_flops(const struct blas *blas)
{
    return CALL_FLOPS_A_THREAD * (blas->threads ? blas->threads : 1);
}

static bool try_direct(const struct gemm_call *call, const struct blas *blas, const struct gemm_problem *g)
{
    struct cblas_matrix a, b, out;

    if (g->dtype != kernels_compute_dtype(g->dtype)) /* then out is of the same dtype */
        return false;
    if (try_vector(call, blas, g))
        return true;
    if (2.0 * (double)g->m * (double)g->n * (double)g->k > call_flops(blas))
        return false;
    if (g->m > INT_MAX || g->n > INT_MAX || g->k > INT_MAX || !gemm_as_cblas(&g->a, g->m, g->k, &a) ||
        !gemm_as_cblas(&g->b, g->k, g->n, &b) || !gemm_as_cblas(&g->out, g->m, g->n, &out) || out.transposed)
        return false;
    multiply(blas, g->dtype, g->m, g->n, g->k, g->alpha, &a, &b, g->beta, &out);
    return true;
}

/* ---- by blocks ---- */

struct pack {
    const struct gemm_call *call;
    enum dtype dtype;
    unsigned char *into; /* to copy into, or out of */
    struct gemm_matrix matrix;
    int64_t rows, columns, step; /* step: rows of an item */
    size_t element;
    double alpha, beta;
};

static void load_item(void *context, unsigned thread, size_t item)
{
    const struct pack *p = context;
    const int64_t from = (int64_t)item * p->step;

    (void)thread;
    p->call->kernels->load[p->dtype](p->into + (size_t)(from * p->columns) * p->element, (size_t)p->columns,
                                     p->matrix.at + from * p->matrix.row * (ptrdiff_t)dtype_size(p->dtype),
                                     (size_t)least(p->step, p->rows - from), (size_t)p->columns, p->matrix.row,
                                     p->matrix.column);
}

static void store_item(void *context, unsigned thread, size_t item)
{
    const struct pack *p = context;
    const int64_t from = (int64_t)item * p->step;

    (void)thread;
    p->call->kernels->store[p->dtype](p->matrix.at + from * p->matrix.row * (ptrdiff_t)dtype_size(p->dtype),
                                      p->matrix.row, p->matrix.column,
                                      p->into + (size_t)(from * p->columns) * p->element, (size_t)p->columns,
                                      (size_t)least(p->step, p->rows - from), (size_t)p->columns, p->alpha, p->beta);
}

static void run_pack(struct pack *p, pool_task *task)
{
    p->element = dtype_size(kernels_compute_dtype(p->dtype));
    p->step = PACK_BYTES / (p->columns * (int64_t)p->element) + 1;
    pool_run(p->call->pool, (size_t)((p->rows + p->step - 1) / p->step), task, p);
}

/* Copies a block along the lines of its memory. */
static struct cblas_matrix copy_in(const struct gemm_call *call, enum dtype dtype, unsigned char *into,
                                   struct gemm_matrix x, int64_t rows, int64_t columns)
{
    struct cblas_matrix stored = {into, x.row < x.column, 0};
    struct pack p = {.call = call, .dtype = dtype, .into = into, .matrix = x, .rows = rows, .columns = columns};

    if (stored.transposed) {
        p.matrix = (struct gemm_matrix){x.at, x.column, x.row};
        p.rows = columns;
        p.columns = rows;
    }
    stored.ld = (int)p.columns;
    run_pack(&p, load_item);
    return stored;
}

static struct gemm_matrix part_of(const struct gemm_matrix *x, enum dtype dtype, int64_t row, int64_t column)
{
    return (struct gemm_matrix){x->at + (row * x->row + column * x->column) * (ptrdiff_t)dtype_size(dtype), x->row,
                                x->column};
}

/* Which matrices of a problem can be used in place by blocks, and the size of blocks. */
struct blocks {
    bool copy_a, copy_b, copy_out;
    int64_t m, n, k;
    unsigned char *a, *b, *out; /* scratch */
};

/* `n` in equal parts of about `most`, no less than `least_part`. */
static int64_t cut(int64_t n, double most, int64_t least_part)
{
    const int64_t limit = least((int64_t)1 << 30, most < (double)n ? (int64_t)most : n);
    const int64_t part = limit < least_part ? least(n, least_part) : limit;
    const int64_t parts = (n + part - 1) / part, even = (n + parts - 1) / parts;

    return parts == 1 ? n : least(n, (even + EDGE_UNIT - 1) / EDGE_UNIT * EDGE_UNIT);
}

static int plan_blocks(const struct gemm_call *call, const struct blas *blas, const struct gemm_problem *g,
                       struct blocks *ret, struct error *e)
{
    const double flops = call_flops(blas) / 2;
    const enum dtype computed = kernels_compute_dtype(g->dtype);
    const size_t element = dtype_size(computed);
    struct cblas_matrix unused, out;
    struct blocks s = {.copy_a = g->dtype != computed || !gemm_as_cblas(&g->a, g->m, g->k, &unused),
                       .copy_b = g->dtype != computed || !gemm_as_cblas(&g->b, g->k, g->n, &unused),
                       .copy_out =
                           g->out_dtype != computed || !gemm_as_cblas(&g->out, g->m, g->n, &out) || out.transposed};
    size_t a, b;

    s.m = s.copy_a || s.copy_out ? least(g->m, BLOCK) : cut(g->m, flops / ((double)g->n * (double)g->k), LEAST_EDGE);
    s.n = s.copy_b || s.copy_out ? least(g->n, BLOCK) : cut(g->n, flops / ((double)s.m * (double)g->k), LEAST_EDGE);
    s.k = s.copy_a || s.copy_b ? least(g->k, BLOCK) : cut(g->k, flops / ((double)s.m * (double)s.n), LEAST_DEPTH);
    a = s.copy_a ? (size_t)(s.m * s.k) * element : 0;
    b = s.copy_b ? (size_t)(s.k * s.n) * element : 0;
    if (pool_reserve_caller(call->pool, a + b + (s.copy_out ? (size_t)(s.m * s.n) * element : 0), e) < 0)
        return -1;
    s.a = pool_scratch(call->pool, 0);
    s.b = s.a + a;
    s.out = s.b + b;
    *ret = s;
    return 0;
}

/* One block of the result: all of k. */
static void run_block(const struct gemm_call *call, const struct blas *blas, const struct gemm_problem *g,
                      const struct blocks *s, int64_t i, int64_t j)
{
    const enum dtype computed = kernels_compute_dtype(g->dtype);
    const int64_t m = least(s->m, g->m - i), n = least(s->n, g->n - j);
    const struct gemm_matrix target = part_of(&g->out, g->out_dtype, i, j);
    struct cblas_matrix out = {s->out, false, (int)n};

    if (!s->copy_out)
        gemm_as_cblas(&target, m, n, &out);
    for (int64_t p = 0; p < g->k && !pool_is_stopped(call->pool); p += s->k) {
        const int64_t k = least(s->k, g->k - p);
        struct gemm_matrix from_a = part_of(&g->a, g->dtype, i, p), from_b = part_of(&g->b, g->dtype, p, j);
        const double alpha = s->copy_out ? 1 : g->alpha, beta = s->copy_out ? 0 : g->beta;
        struct cblas_matrix a, b;

        if (s->copy_a)
            a = copy_in(call, g->dtype, s->a, from_a, m, k);
        else
            gemm_as_cblas(&from_a, m, k, &a);
        if (s->copy_b)
            b = copy_in(call, g->dtype, s->b, from_b, k, n);
        else
            gemm_as_cblas(&from_b, k, n, &b);
        multiply(blas, computed, m, n, k, alpha, &a, &b, p == 0 ? beta : 1, &out);
    }
    if (s->copy_out) {
        struct pack p = {.call = call,
                         .dtype = g->out_dtype,
                         .into = s->out,
                         .matrix = target,
                         .rows = m,
                         .columns = n,
                         .alpha = g->alpha,
                         .beta = g->beta};

        run_pack(&p, store_item);
    }
}

static int run_one(const struct gemm_call *call, const struct blas *blas, const struct gemm_problem *g, struct error *e)
{
    struct blocks s;

    if (try_direct(call, blas, g))
        return 0;
    if (plan_blocks(call, blas, g, &s, e) < 0)
        return -1;
    for (int64_t i = 0; i < g->m; i += s.m)
        for (int64_t j = 0; j < g->n && !pool_is_stopped(call->pool); j += s.n)
            run_block(call, blas, g, &s, i, j);
    return 0;
}

/* ---- batches ---- */

struct batch {
    const struct gemm_call *call;
    const struct blas *blas;
};

static void batch_item(void *context, unsigned thread, size_t item)
{
    const struct batch *b = context;
    const struct gemm_problem g = gemm_problem_at(b->call, item + 1);

    (void)thread;
    try_direct(b->call, b->blas, &g); /* the first product, which has the same strides, could be direct */
}

int gemm_blas(const struct gemm_call *call, struct blas *blas, struct error *e)
{
    const struct plan_gemm *p = &call->plan->gemm;
    const bool small = (double)p->m * (double)p->n * (double)p->k <= SMALL;
    struct gemm_problem g = gemm_problem_at(call, 0);
    uint64_t done = 0;

    if (p->batch_count > 1 && small && pool_threads(call->pool) > 1 && try_direct(call, blas, &g)) {
        done = 1;
        if (blas_set_threads(blas, 1)) {
            struct batch rest = {call, blas};

            pool_run(call->pool, p->batch_count - 1, batch_item, &rest);
            blas_set_threads(blas, blas->threads);
            return 0;
        }
    }
    for (; done < p->batch_count && !pool_is_stopped(call->pool); done++) {
        g = gemm_problem_at(call, done);
        if (run_one(call, blas, &g, e) < 0)
            return -1;
    }
    return 0;
}

#include "linear.h"

#include <math.h>
#include <stdlib.h>

enum {
    SUMS_MAX = 4 << 20,  /* elements that are computed before they are rounded: 16 MiB of f32 */
    SUMS_COLUMNS = 4096, /* of a part of a larger result */
    ITEM = 16 << 10,     /* elements that a thread finishes at a time */
    WIDTH = 256          /* of them in its cache */
};

/* ---- activations ---- */

/* Keeps NaNs. */
#define DEFINE_ACTIVATE(type, erf, tanh)                                                                               \
    static void activate_##type(type *x, size_t n, enum plan_activation activation)                                    \
    {                                                                                                                  \
        const type half = (type)0.5, root_half = (type)0.70710678118654752, scale = (type)0.79788456080286536,         \
                   cubic = (type)0.044715;                                                                             \
                                                                                                                       \
        switch (activation) {                                                                                          \
        case PLAN_NONE:                                                                                                \
            break;                                                                                                     \
        case PLAN_RELU:                                                                                                \
            for (size_t i = 0; i < n; i++)                                                                             \
                x[i] = x[i] < 0 ? 0 : x[i];                                                                            \
            break;                                                                                                     \
        case PLAN_GELU:                                                                                                \
            for (size_t i = 0; i < n; i++)                                                                             \
                x[i] = half * x[i] * (1 + erf(x[i] * root_half));                                                      \
            break;                                                                                                     \
        case PLAN_GELU_TANH:                                                                                           \
            for (size_t i = 0; i < n; i++)                                                                             \
                x[i] = half * x[i] * (1 + tanh(scale * (x[i] + cubic * x[i] * x[i] * x[i])));                          \
            break;                                                                                                     \
        }                                                                                                              \
    }

DEFINE_ACTIVATE(float, erff, tanhf)
DEFINE_ACTIVATE(double, erf, tanh)

/* ---- the pass over sums ---- */

/* A block of a result, or all of it: element (i, j) of batch c is at out + (c's offset + i·row + j·column). Sums are
 * row-major over batches, rows and columns, in the type that is computed in; NULL: they are in out. */
struct finish {
    const struct linear_call *call;
    enum dtype computed;
    unsigned char *out;
    const unsigned char *bias, *sums;
    int64_t rows, columns;
    uint64_t batch_count; /* 1: the block is of one matrix, whose pointers these are */
    size_t step;          /* rows of an item, over all batches */
};

uint64_t linear_batch_offset(const struct plan_gemm *g, const struct plan_matrix *x, uint64_t index)
{
    uint64_t offset = 0;

    for (unsigned d = g->batch_rank; d-- > 0;) {
        offset += index % (uint64_t)g->batch_shape[d] * (uint64_t)x->batch[d];
        index /= (uint64_t)g->batch_shape[d];
    }
    return offset;
}

/* `n` neighbours in a row, from `column` on. */
static void finish_part(const struct finish *f, const unsigned char *sums, const unsigned char *bias,
                        unsigned char *out, size_t n)
{
    const struct plan *plan = f->call->plan;
    const struct plan_gemm *g = &plan->gemm;
    const struct kernels *k = f->call->kernels;
    union {
        float f32[WIDTH];
        double f64[WIDTH];
    } x, add;

    if (sums)
        k->load[f->computed](&x, WIDTH, sums, 1, n, 0, 1);
    else
        k->load[f->computed](&x, WIDTH, out, 1, n, 0, g->out.column);
    k->load[plan->dtype](&add, WIDTH, bias, 1, n, 0, g->bias.column);
    if (f->computed == DTYPE_F64) {
        for (size_t i = 0; i < n; i++)
            x.f64[i] += add.f64[i];
        activate_double(x.f64, n, g->activation);
    } else {
        for (size_t i = 0; i < n; i++)
            x.f32[i] += add.f32[i];
        activate_float(x.f32, n, g->activation);
    }
    k->store[plan->out_dtype](out, 0, g->out.column, &x, WIDTH, 1, n, 1, 0);
}

static void finish_row(const struct finish *f, uint64_t batch, int64_t row)
{
    const struct plan *plan = f->call->plan;
    const struct plan_gemm *g = &plan->gemm;
    const bool whole = f->batch_count > 1;
    const uint64_t out = (whole ? linear_batch_offset(g, &g->out, batch) : 0) + (uint64_t)(row * g->out.row);
    const uint64_t bias = (whole ? linear_batch_offset(g, &g->bias, batch) : 0) + (uint64_t)(row * g->bias.row);
    const uint64_t sums = (batch * (uint64_t)f->rows + (uint64_t)row) * (uint64_t)f->columns;

    for (int64_t j = 0; j < f->columns; j += WIDTH)
        finish_part(f, f->sums ? f->sums + (sums + (uint64_t)j) * dtype_size(f->computed) : NULL,
                    f->bias + (bias + (uint64_t)(j * g->bias.column)) * dtype_size(plan->dtype),
                    f->out + (out + (uint64_t)(j * g->out.column)) * dtype_size(plan->out_dtype),
                    (size_t)(f->columns - j < WIDTH ? f->columns - j : WIDTH));
}

static void finish_item(void *context, unsigned thread, size_t item)
{
    const struct finish *f = context;
    const uint64_t all = f->batch_count * (uint64_t)f->rows, from = item * f->step;

    (void)thread;
    for (uint64_t at = from; at < all && at < from + f->step; at++)
        finish_row(f, at / (uint64_t)f->rows, (int64_t)(at % (uint64_t)f->rows));
}

static void finish(struct finish *f)
{
    const uint64_t all = f->batch_count * (uint64_t)f->rows;

    f->step = (size_t)(ITEM / f->columns) + 1;
    pool_run(f->call->pool, (size_t)((all + f->step - 1) / f->step), finish_item, f);
}

/* ---- the product ---- */

/* The plan's product alone. */
static struct plan product_of(const struct plan *plan, enum dtype out_dtype)
{
    struct plan p = *plan;

    p.out_dtype = out_dtype;
    p.gemm.has_bias = false;
    p.gemm.activation = PLAN_NONE;
    return p;
}

/* All of the result in `sums`. */
static int run_whole(const struct linear_call *call, enum dtype computed, unsigned char *sums, struct error *e)
{
    const struct plan_gemm *g = &call->plan->gemm;
    struct plan product = product_of(call->plan, computed);
    unsigned char *const pointers[] = {call->pointers[PLAN_GEMM_A], call->pointers[PLAN_GEMM_B], sums};
    struct finish f = {.call = call,
                       .computed = computed,
                       .out = call->pointers[plan_gemm_out(g)],
                       .bias = call->pointers[PLAN_GEMM_BIAS],
                       .sums = sums,
                       .rows = g->m,
                       .columns = g->n,
                       .batch_count = g->batch_count};
    int64_t stride = g->m * g->n;

    product.gemm.out.row = g->n;
    product.gemm.out.column = 1;
    for (unsigned d = g->batch_rank; d-- > 0;) {
        product.gemm.out.batch[d] = stride;
        stride *= g->batch_shape[d];
    }
    if (call->product(call->context, &product, pointers, e) < 0)
        return -1;
    finish(&f);
    return 0;
}

/* A block of one matrix of the result, from row i and column j on. */
static int run_part(const struct linear_call *call, enum dtype computed, unsigned char *sums, uint64_t batch, int64_t i,
                    int64_t j, int64_t rows, int64_t columns, struct error *e)
{
    const struct plan_gemm *g = &call->plan->gemm;
    const size_t in = dtype_size(call->plan->dtype), out = dtype_size(call->plan->out_dtype);
    struct plan product = product_of(call->plan, computed);
    const uint64_t at_a = linear_batch_offset(g, &g->a, batch) + (uint64_t)(i * g->a.row);
    const uint64_t at_b = linear_batch_offset(g, &g->b, batch) + (uint64_t)(j * g->b.column);
    const uint64_t at_bias =
        linear_batch_offset(g, &g->bias, batch) + (uint64_t)(i * g->bias.row) + (uint64_t)(j * g->bias.column);
    const uint64_t at_out =
        linear_batch_offset(g, &g->out, batch) + (uint64_t)(i * g->out.row) + (uint64_t)(j * g->out.column);
    unsigned char *const pointers[] = {call->pointers[PLAN_GEMM_A] + at_a * in, call->pointers[PLAN_GEMM_B] + at_b * in,
                                       sums};
    struct finish f = {.call = call,
                       .computed = computed,
                       .out = call->pointers[plan_gemm_out(g)] + at_out * out,
                       .bias = call->pointers[PLAN_GEMM_BIAS] + at_bias * in,
                       .sums = sums,
                       .rows = rows,
                       .columns = columns,
                       .batch_count = 1};

    product.gemm.m = rows;
    product.gemm.n = columns;
    product.gemm.batch_rank = 0;
    product.gemm.batch_count = 1;
    product.gemm.out.row = columns;
    product.gemm.out.column = 1;
    if (call->product(call->context, &product, pointers, e) < 0)
        return -1;
    finish(&f);
    return 0;
}

static int run_parts(const struct linear_call *call, enum dtype computed, unsigned char *sums, struct error *e)
{
    const struct plan_gemm *g = &call->plan->gemm;
    const int64_t columns = g->n < SUMS_COLUMNS ? g->n : SUMS_COLUMNS, rows = SUMS_MAX / columns;

    for (uint64_t batch = 0; batch < g->batch_count; batch++)
        for (int64_t i = 0; i < g->m; i += rows)
            for (int64_t j = 0; j < g->n && !pool_is_stopped(call->pool); j += columns)
                if (run_part(call, computed, sums, batch, i, j, g->m - i < rows ? g->m - i : rows,
                             g->n - j < columns ? g->n - j : columns, e) < 0)
                    return -1;
    return 0;
}

/* Sums that out can hold are made there. */
static int run_in_place(const struct linear_call *call, struct error *e)
{
    const struct plan_gemm *g = &call->plan->gemm;
    const struct plan product = product_of(call->plan, call->plan->out_dtype);
    unsigned char *const pointers[] = {call->pointers[PLAN_GEMM_A], call->pointers[PLAN_GEMM_B],
                                       call->pointers[plan_gemm_out(g)]};
    struct finish f = {.call = call,
                       .computed = call->plan->out_dtype,
                       .out = call->pointers[plan_gemm_out(g)],
                       .bias = call->pointers[PLAN_GEMM_BIAS],
                       .rows = g->m,
                       .columns = g->n,
                       .batch_count = g->batch_count};

    if (call->product(call->context, &product, pointers, e) < 0)
        return -1;
    finish(&f);
    return 0;
}

int linear_run(const struct linear_call *call, struct error *e)
{
    const struct plan_gemm *g = &call->plan->gemm;
    const enum dtype computed = kernels_compute_dtype(call->plan->dtype);
    const double elements = (double)g->m * (double)g->n * (double)g->batch_count;
    const bool whole = elements <= SUMS_MAX;
    unsigned char *sums;
    int r;

    if (call->plan->out_dtype == computed)
        return run_in_place(call, e);
    sums = malloc((size_t)(whole ? elements : SUMS_MAX) * dtype_size(computed));
    if (!sums)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the sums of a product");
    r = whole ? run_whole(call, computed, sums, e) : run_parts(call, computed, sums, e);
    free(sums);
    return r;
}

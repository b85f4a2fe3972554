#include "gemm.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    EDGE = 512,             /* most rows and columns of a tile, where matrices are copied */
    DEPTH = 512,            /* steps along k of a copied block */
    LEAST_EDGE = 64,        /* least edge of tiles that are halved to feed more threads */
    EDGE_UNIT = 32,         /* halved edges are multiples of this */
    ALONE = 96 * 96 * 96,   /* up to this m·n·k a second thread does not pay */
    BALANCE_FLOPS = 1 << 26 /* with larger tiles each thread should have several */
};

/* Operations of a call, some 100 ms: larger products are cut, since a library's call cannot be stopped. */
static const double CALL_FLOPS = 4e9;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- one product of a batch ---- */

struct matrix {
    unsigned char *at;
    enum dtype dtype;
    ptrdiff_t row, column; /* strides in elements */
};

struct product {
    int64_t m, n, k;
    struct matrix a, b, out;
    struct matrix more[2]; /* the bias, or both scales */
};

static struct matrix matrix_of(const struct gemm_call *call, unsigned operand, enum dtype dtype, uint64_t index)
{
    const struct plan_gemm *p = &call->plan->gemm;
    const struct plan_matrix *x = plan_gemm_matrix(p, operand);
    uint64_t offset = 0;

    for (unsigned d = p->batch_rank; d-- > 0;) {
        offset += index % (uint64_t)p->batch_shape[d] * (uint64_t)x->batch[d];
        index /= (uint64_t)p->batch_shape[d];
    }
    return (struct matrix){call->pointers[operand] + offset * dtype_size(dtype), dtype, x->row, x->column};
}

static void transpose(struct matrix *x)
{
    const ptrdiff_t row = x->row;

    x->row = x->column;
    x->column = row;
}

/* Returns the batch's product number `index`. If out is contiguous along its columns, all matrices are transposed, so
 * that out.column is 1 if either of out's strides is 1. */
static struct product product_at(const struct gemm_call *call, uint64_t index)
{
    const enum dtype dtype = call->plan->dtype;
    const struct plan_gemm *p = &call->plan->gemm;
    struct product x = {.m = p->m, .n = p->n, .k = p->alpha == 0 ? 0 : p->k};

    x.a = matrix_of(call, PLAN_GEMM_A, dtype, index);
    x.b = matrix_of(call, PLAN_GEMM_B, p->has_scales ? p->b_dtype : dtype, index);
    x.out = matrix_of(call, plan_gemm_out(p), call->plan->out_dtype, index);
    for (unsigned i = 0; i < plan_gemm_extras(p); i++)
        x.more[i] = matrix_of(call, PLAN_GEMM_BIAS + i, p->has_scales ? DTYPE_F32 : dtype, index);
    if (x.out.column != 1 && x.n > 1 && (x.out.row == 1 || x.m == 1)) {
        const struct product t = x;

        x.m = t.n;
        x.n = t.m;
        x.a = t.b;
        x.b = t.a;
        transpose(&x.a);
        transpose(&x.b);
        transpose(&x.out);
        transpose(&x.more[0]);
        transpose(&x.more[1]);
    }
    return x;
}

static struct matrix part_of(const struct matrix *x, int64_t row, int64_t column)
{
    struct matrix part = *x;

    part.at += (row * x->row + column * x->column) * (ptrdiff_t)dtype_size(x->dtype);
    return part;
}

/* Whether a library can use the matrix in place. */
static bool as_block(const struct matrix *x, int64_t rows, int64_t columns, struct gemm_block *ret)
{
    int64_t ld;

    if ((x->column == 1 || columns <= 1) && (x->row >= most(1, columns) || rows <= 1)) {
        ret->transposed = false;
        ld = rows <= 1 ? most(1, columns) : x->row;
    } else if ((x->row == 1 || rows <= 1) && (x->column >= most(1, rows) || columns <= 1)) {
        ret->transposed = true;
        ld = columns <= 1 ? most(1, rows) : x->column;
    } else {
        return false;
    }
    ret->at = x->at;
    ret->ld = (int)ld;
    return ld <= INT_MAX;
}

/* ---- the epilogue ---- */

/* Finishes n sums x of a row. `first`: the bias; with scales `first` and `second` are these. NaNs stay NaNs. */
#define DEFINE_FINISH(type, erf, tanh)                                                                                 \
    static void finish_##type(const struct plan_gemm *p, type *x, const type *first, const type *second, size_t n)     \
    {                                                                                                                  \
        const type alpha = (type)p->alpha, half = (type)0.5, root_half = (type)0.70710678118654752,                    \
                   scale = (type)0.79788456080286536, cubic = (type)0.044715;                                          \
                                                                                                                       \
        for (size_t i = 0; i < n; i++)                                                                                 \
            x[i] = p->has_scales ? x[i] * first[i] * second[i] : alpha * x[i] + first[i];                              \
        switch (p->activation) {                                                                                       \
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

DEFINE_FINISH(float, erff, tanhf)
DEFINE_FINISH(double, erf, tanh)

/* Makes elements of out from a tile's sums. (i, j): the tile's first element. */
static void finish(const struct gemm_call *call, const struct product *x, unsigned char *sums, int64_t i, int64_t j,
                   int64_t m, int64_t n)
{
    const struct plan_gemm *p = &call->plan->gemm;
    const enum dtype computed = kernels_compute_dtype(call->plan->dtype);
    const struct matrix out = part_of(&x->out, i, j);
    const bool plain = plan_gemm_extras(p) == 0;
    union {
        float f32[EDGE];
        double f64[EDGE];
    } more[2];

    for (int64_t r = 0; r < m && !plain; r++) {
        unsigned char *row = sums + (size_t)(r * n) * dtype_size(computed);

        for (unsigned o = 0; o < plan_gemm_extras(p); o++) {
            const struct matrix from = part_of(&x->more[o], i + r, j);

            call->kernels->load[from.dtype](&more[o], from.at, 1, (size_t)n, 0, from.column);
        }
        if (computed == DTYPE_F64)
            finish_double(p, (double *)(void *)row, more[0].f64, more[1].f64, (size_t)n);
        else
            finish_float(p, (float *)(void *)row, more[0].f32, more[1].f32, (size_t)n);
    }
    call->kernels->store[out.dtype](out.at, out.row, out.column, sums, (size_t)m, (size_t)n, plain ? p->alpha : 1,
                                    plain ? p->beta : 0);
}

/* ---- tiles ---- */

struct tiles {
    const struct gemm_call *call;
    const struct gemm_way *way;
    enum dtype dtype;              /* the dtype in which operands are multiplied */
    bool copy_a, copy_b, copy_out; /* copies are f32 or f64 */
    int64_t rows, columns, depth;  /* size of a tile; steps along k of a block */
    int64_t down, across;          /* number of tiles */
    size_t element;                /* bytes of a copied element */
    size_t at_b, at_out, scratch;  /* a thread's scratch: offsets of b and out, bytes of all */
    atomic_bool refused, computed; /* the library refused any call; it computed any call */
};

/* Returns a block for the library: in place, or copied to `into` in the order of its memory. */
static struct gemm_block block(const struct tiles *t, const struct matrix *x, bool copy, unsigned char *into,
                               int64_t row, int64_t column, int64_t rows, int64_t columns)
{
    const struct matrix part = part_of(x, row, column);
    struct gemm_block ret = {into, part.row < part.column && t->way->in_place, 0};

    if (!copy) {
        as_block(&part, rows, columns, &ret);
    } else if (ret.transposed) {
        ret.ld = (int)rows;
        t->call->kernels->load[part.dtype](into, part.at, (size_t)columns, (size_t)rows, part.column, part.row);
    } else {
        ret.ld = (int)columns;
        t->call->kernels->load[part.dtype](into, part.at, (size_t)rows, (size_t)columns, part.row, part.column);
    }
    return ret;
}

static void run_tile(void *context, unsigned thread, size_t item)
{
    struct tiles *t = context;
    const struct plan_gemm *plan = &t->call->plan->gemm;
    const int64_t rest = (int64_t)item / t->across;
    const struct product x = product_at(t->call, (uint64_t)(rest / t->down));
    const int64_t i = rest % t->down * t->rows, j = (int64_t)item % t->across * t->columns;
    const int64_t m = least(t->rows, x.m - i), n = least(t->columns, x.n - j);
    unsigned char *scratch = pool_scratch(t->call->pool, thread);
    struct gemm_block out = {scratch + t->at_out, false, (int)n};

    if (!t->copy_out)
        out = block(t, &x.out, false, NULL, i, j, m, n);
    else if (x.k == 0)
        memset(out.at, 0, (size_t)(m * n) * t->element);
    for (int64_t p = 0; p < x.k && !pool_is_stopped(t->call->pool); p += t->depth) {
        const int64_t k = least(t->depth, x.k - p);
        const struct gemm_block a = block(t, &x.a, t->copy_a, scratch, i, p, m, k);
        const struct gemm_block b = block(t, &x.b, t->copy_b, scratch + t->at_b, p, j, k, n);
        const double first = t->copy_out ? 0 : plan->beta;

        if (atomic_load(&t->refused))
            return;
        if (t->way->multiply(t->way->library, t->dtype, m, n, k, t->copy_out ? 1 : plan->alpha, &a, &b,
                             p == 0 ? first : 1, &out) != 0) {
            atomic_store(&t->refused, true);
            return;
        }
        atomic_store(&t->computed, true);
    }
    /* A stopped product lacks sums, and the scratch memory may hold another job's. */
    if (t->copy_out && !pool_is_stopped(t->call->pool))
        finish(t->call, &x, out.at, i, j, m, n);
}

static int64_t halve(int64_t edge)
{
    return (edge / 2 + EDGE_UNIT - 1) / EDGE_UNIT * EDGE_UNIT;
}

/* Cuts out into tiles of at most `edge` rows and columns, enough for all threads. */
static void cut(struct tiles *t, const struct product *x, int64_t edge)
{
    const int64_t threads = pool_threads(t->call->pool), batches = (int64_t)t->call->plan->gemm.batch_count;
    const bool alone = threads == 1 || (double)x->m * (double)x->n * (double)x->k <= ALONE;

    t->rows = least(x->m, edge);
    t->columns = least(x->n, edge);
    for (;;) {
        const double flops = 2.0 * (double)t->rows * (double)t->columns * (double)x->k;

        t->down = (x->m + t->rows - 1) / t->rows;
        t->across = (x->n + t->columns - 1) / t->columns;
        if (alone || t->down * t->across * batches >= (flops > BALANCE_FLOPS ? 2 * threads : threads))
            return;
        if (t->rows >= t->columns && t->rows >= 2 * LEAST_EDGE)
            t->rows = halve(t->rows);
        else if (t->columns >= 2 * LEAST_EDGE)
            t->columns = halve(t->columns);
        else
            return;
    }
}

/* Decides which matrices are copied, and the size of tiles and blocks. */
static void plan_tiles(struct tiles *t, const struct product *x)
{
    const enum dtype computed = kernels_compute_dtype(t->call->plan->dtype);
    const bool fits = x->m <= INT_MAX && x->n <= INT_MAX && x->k <= INT_MAX;
    int64_t edge = INT_MAX;
    struct gemm_block a, b, out;
    double deepest;
    bool in_place;

    in_place = t->way->in_place & DTYPE_BIT(t->call->plan->dtype) && fits;
    t->copy_a = !(in_place && as_block(&x->a, x->m, x->k, &a));
    t->copy_b = !(in_place && as_block(&x->b, x->k, x->n, &b));
    if (t->call->plan->dtype != computed && (t->copy_a || t->copy_b)) /* a and b must have equal dtypes */
        t->copy_a = t->copy_b = true;
    t->dtype = t->copy_a && t->copy_b ? computed : t->call->plan->dtype;
    t->copy_out = !t->way->in_place || !fits || x->k == 0 || plan_gemm_extras(&t->call->plan->gemm) ||
                  x->out.dtype != computed || !as_block(&x->out, x->m, x->n, &out) || out.transposed;
    if (t->copy_a || t->copy_b || t->copy_out)
        edge = EDGE;
    else if (2.0 * (double)x->m * (double)x->n * (double)x->k > CALL_FLOPS) /* cut along all three edges */
        edge = 4 * EDGE;
    cut(t, x, edge);
    deepest = fmin(fmax(CALL_FLOPS / (2.0 * (double)t->rows * (double)t->columns), DEPTH), INT_MAX);
    t->depth = least(t->copy_a || t->copy_b ? DEPTH : (int64_t)deepest, x->k);
    t->element = dtype_size(computed);
    t->at_b = t->copy_a ? (size_t)(t->rows * t->depth) * t->element : 0;
    t->at_out = t->at_b + (t->copy_b ? (size_t)(t->depth * t->columns) * t->element : 0);
    t->scratch = t->at_out + (t->copy_out ? (size_t)(t->rows * t->columns) * t->element : 0);
}

int gemm_compute(const struct gemm_call *call, const struct gemm_way *way, struct error *e)
{
    const struct product first = product_at(call, 0);
    struct tiles t = {.call = call, .way = way};

    plan_tiles(&t, &first);
    if (t.scratch && pool_reserve(call->pool, t.scratch, e) < 0)
        return -1;
    pool_run(call->pool, (size_t)(t.down * t.across) * call->plan->gemm.batch_count, run_tile, &t);
    if (!atomic_load(&t.refused))
        return 0;
    if (!atomic_load(&t.computed))
        return 1;
    return error_set(e, ERROR_OUT_OF_MEMORY, "the library gave up within a product; use another variant");
}

/* ---- our own way ---- */

static int multiply(const void *kernels_, enum dtype dtype, int64_t m, int64_t n, int64_t k, double alpha,
                    const struct gemm_block *a, const struct gemm_block *b, double beta, const struct gemm_block *out)
{
    const struct kernels *kernels = kernels_;

    (void)alpha;
    if (beta == 0)
        memset(out->at, 0, (size_t)(m * n) * dtype_size(dtype));
    kernels->multiply[dtype](out->at, a->at, b->at, (size_t)m, (size_t)n, (size_t)k);
    return 0;
}

struct gemm_way gemm_own(const struct kernels *kernels)
{
    return (struct gemm_way){kernels, multiply, 0};
}

double gemm_cost_ns(const struct plan *plan)
{
    const struct plan_gemm *p = &plan->gemm;
    const double batches = (double)p->batch_count, elements = (double)p->m * (double)p->n;
    const double bytes = ((double)p->m + (double)p->n) * (double)p->k * (double)dtype_size(plan->dtype) +
                         elements * (double)dtype_size(plan->out_dtype);
    const bool gelu = p->activation == PLAN_GELU || p->activation == PLAN_GELU_TANH;
    const double each = gelu ? 10 : plan_gemm_extras(p) ? 1 : 0;

    return batches * (2 * elements * (double)p->k / 40 + bytes / 10 + 200 + each * elements);
}

/* gemm through oneDNN. The result is cut into tiles, each computed by one of the pool's threads. Matrices that oneDNN
 * takes as they are, are used where they lie; others are copied to f32 by blocks, so scratch is bounded.
 *
 * oneDNN's generated code uses the stack pointer as a pointer into a buffer of its own for some of the time, so that a
 * signal's handler on the same stack would overwrite memory of others. It runs only on threads that take no signals but
 * faults, and that have another stack for these: never on the loop's. */
#include <limits.h>
#include <stdatomic.h>

#include "gemm.h"
#include "guard.h"

enum {
    EDGE = 512,             /* of a tile whose matrices are copied */
    DEPTH = 1024,           /* of a block that is copied, along k */
    EDGE_UNIT = 32,         /* a tile's edges are multiples of it */
    LEAST_EDGE = 64,        /* of a tile that is cut to feed more threads */
    BALANCE_FLOPS = 1 << 26 /* of tiles so large that there should be several for each thread */
};

/* A library's call cannot be stopped, so products are cut where a call would take longer than some 100 ms. */
static const double CALL_FLOPS = 4e9;

struct shared {
    const struct gemm_call *call;
    const struct onednn *library;
    enum dtype dtype, out_dtype;
    bool bf16;                     /* multiplied as such */
    bool copy_a, copy_b, copy_out; /* to f32 */
    int64_t rows, columns, depth;  /* of a tile, and of a block along k */
    int64_t down, across;          /* tiles */
    size_t at_b, at_out, scratch;  /* bytes of a thread's scratch */
    atomic_bool refused, computed; /* by oneDNN: any call, any other call */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static const void *at(const struct shared *s, const struct gemm_matrix *x, int64_t row, int64_t column)
{
    return x->at + (row * x->row + column * x->column) * (ptrdiff_t)dtype_size(s->dtype);
}

/* A block as oneDNN takes it: where it lies, or copied to `into`. */
static struct cblas_matrix block(const struct shared *s, const struct gemm_matrix *x, bool copy, float *into,
                                 int64_t row, int64_t column, int64_t rows, int64_t columns)
{
    const struct gemm_matrix part = {x->at + (row * x->row + column * x->column) * (ptrdiff_t)dtype_size(s->dtype),
                                     x->row, x->column};
    struct cblas_matrix ret = {into, false, (int)columns};

    if (copy)
        s->call->kernels->load[s->dtype](into, (size_t)columns, at(s, x, row, column), (size_t)rows, (size_t)columns,
                                         x->row, x->column);
    else
        gemm_as_cblas(&part, rows, columns, &ret);
    return ret;
}

static int multiply(const struct shared *s, int64_t m, int64_t n, int64_t k, double alpha, const struct cblas_matrix *a,
                    const struct cblas_matrix *b, double beta, const struct cblas_matrix *out)
{
    const struct onednn *library = s->library;
    const char trans_a = a->transposed ? 'T' : 'N', trans_b = b->transposed ? 'T' : 'N';
    const int threads = library->threads();
    int status;

    if (!guard_own_stack())
        return -1;
    /* The number is the calling thread's, and a BLAS that uses OpenMP reads it, too. */
    library->set_threads(1);
    if (s->bf16)
        status = library->bf16gemm(trans_a, trans_b, m, n, k, (float)alpha, a->at, a->ld, b->at, b->ld, (float)beta,
                                   out->at, out->ld);
    else
        status = library->sgemm(trans_a, trans_b, m, n, k, (float)alpha, a->at, a->ld, b->at, b->ld, (float)beta,
                                out->at, out->ld);
    library->set_threads(threads);
    return status;
}

static void run_tile(void *context, unsigned thread, size_t item)
{
    struct shared *s = context;
    const int64_t tile = (int64_t)item, rest = tile / s->across, i = rest % s->down * s->rows,
                  j = tile % s->across * s->columns;
    const struct gemm_problem g = gemm_problem_at(s->call, (uint64_t)(rest / s->down));
    const int64_t m = least(s->rows, g.m - i), n = least(s->columns, g.n - j);
    unsigned char *scratch = pool_scratch(s->call->pool, thread);
    struct cblas_matrix out = {scratch + s->at_out, false, (int)n};
    const struct gemm_matrix in_place = {g.out.at + (i * g.out.row + j * g.out.column) * (ptrdiff_t)sizeof(float),
                                         g.out.row, g.out.column};

    if (!s->copy_out)
        gemm_as_cblas(&in_place, m, n, &out);
    for (int64_t p = 0; p < g.k && !pool_is_stopped(s->call->pool); p += s->depth) {
        const int64_t k = least(s->depth, g.k - p);
        const struct cblas_matrix a = block(s, &g.a, s->copy_a, (void *)scratch, i, p, m, k);
        const struct cblas_matrix b = block(s, &g.b, s->copy_b, (void *)(scratch + s->at_b), p, j, k, n);
        const double first = s->copy_out ? 0 : g.beta;

        if (atomic_load(&s->refused))
            return;
        if (multiply(s, m, n, k, s->copy_out ? 1 : g.alpha, &a, &b, p == 0 ? first : 1, &out) != 0) {
            atomic_store(&s->refused, true);
            return;
        }
        atomic_store(&s->computed, true);
    }
    if (s->copy_out)
        s->call->kernels->store[s->out_dtype](
            g.out.at + (i * g.out.row + j * g.out.column) * (ptrdiff_t)dtype_size(s->out_dtype), g.out.row,
            g.out.column, out.at, (size_t)n, (size_t)m, (size_t)n, g.alpha, g.beta);
}

static int64_t halve(int64_t edge)
{
    return (edge / 2 + EDGE_UNIT - 1) / EDGE_UNIT * EDGE_UNIT;
}

/* Tiles of at most `most` rows and columns, and enough of them for all threads. */
static void choose_tiles(struct shared *s, const struct gemm_problem *g, int64_t most)
{
    const int64_t threads = pool_threads(s->call->pool), batches = (int64_t)s->call->plan->gemm.batch_count;

    s->rows = least(g->m, most);
    s->columns = least(g->n, most);
    for (;;) {
        const double flops = 2.0 * (double)s->rows * (double)s->columns * (double)g->k;
        int64_t tiles, wanted = flops > BALANCE_FLOPS ? 2 * threads : threads;

        s->down = (g->m + s->rows - 1) / s->rows;
        s->across = (g->n + s->columns - 1) / s->columns;
        tiles = s->down * s->across * batches;
        if (threads == 1 || tiles >= wanted)
            return;
        if (s->rows >= s->columns && s->rows >= 2 * LEAST_EDGE)
            s->rows = halve(s->rows);
        else if (s->columns >= 2 * LEAST_EDGE)
            s->columns = halve(s->columns);
        else
            return;
    }
}

int gemm_onednn(const struct gemm_call *call, const struct onednn *library, struct error *e)
{
    const struct gemm_problem g = gemm_problem_at(call, 0);
    struct cblas_matrix a, b, out;
    const bool fits = g.m <= INT_MAX && g.n <= INT_MAX && g.k <= INT_MAX;
    const bool usable_a = fits && gemm_as_cblas(&g.a, g.m, g.k, &a),
               usable_b = fits && gemm_as_cblas(&g.b, g.k, g.n, &b);
    struct shared s = {.call = call, .library = library, .dtype = g.dtype, .out_dtype = g.out_dtype};
    int64_t most = INT_MAX;
    double deepest;

    s.bf16 = g.dtype == DTYPE_BF16 && library->bf16gemm && usable_a && usable_b;
    s.copy_a = !(s.bf16 || (g.dtype == DTYPE_F32 && usable_a));
    s.copy_b = !(s.bf16 || (g.dtype == DTYPE_F32 && usable_b));
    s.copy_out = g.out_dtype != DTYPE_F32 || !fits || !gemm_as_cblas(&g.out, g.m, g.n, &out) || out.transposed;
    if (s.copy_a || s.copy_b || s.copy_out)
        most = EDGE;
    /* A call that is too long is cut along all three edges. */
    else if (2.0 * (double)g.m * (double)g.n * (double)g.k > CALL_FLOPS)
        most = 4 * EDGE;
    choose_tiles(&s, &g, most);
    deepest = CALL_FLOPS / (2.0 * (double)s.rows * (double)s.columns);
    s.depth = s.copy_a || s.copy_b ? DEPTH : deepest < DEPTH ? DEPTH : deepest > INT_MAX ? INT_MAX : (int64_t)deepest;
    s.depth = least(s.depth, g.k);
    s.at_b = s.copy_a ? (size_t)(s.rows * s.depth) * sizeof(float) : 0;
    s.at_out = s.at_b + (s.copy_b ? (size_t)(s.depth * s.columns) * sizeof(float) : 0);
    s.scratch = s.at_out + (s.copy_out ? (size_t)(s.rows * s.columns) * sizeof(float) : 0);
    if (s.scratch && pool_reserve(call->pool, s.scratch, e) < 0)
        return -1;
    pool_run(call->pool, (size_t)(s.down * s.across) * call->plan->gemm.batch_count, run_tile, &s);
    if (!atomic_load(&s.refused))
        return 0;
    if (!atomic_load(&s.computed))
        return 1;
    return error_set(e, ERROR_OUT_OF_MEMORY, "oneDNN gave up within a product; use another variant");
}

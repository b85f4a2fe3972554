/* Our own gemm, after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008): a panel of B
 * is packed to lie in the second-level cache, slivers of A pass by in the first, and a tile of accumulators stays in
 * registers. The result is cut into tiles that threads take independently; each packs for itself, so that no
 * thread waits for another. f16 and bf16 become f32 while they are packed and are rounded once at the end. */
#include <stdlib.h>
#include <string.h>

#include "gemm.h"

enum {
    DEPTH = 256,                  /* of a packed panel, along k, in units */
    SINGLE_DEPTH = 512,           /* of a single panel that saves accumulating in scratch */
    DIRECT_A = 16 << 10,          /* bytes over which a sliver of A may spread to be used where it lies */
    DIRECT_B = 32 << 10,          /* the same of B for one column of tiles */
    PANEL_BYTES = 512 << 10,      /* of B: half of a usual second-level cache */
    DEEP_PANEL_BYTES = 768 << 10, /* where it is deeper than DEPTH */
    TILE_ROWS = 768,              /* of the result: B is packed once for as many */
    HALF_TILE_ROWS = 384,         /* the same where a tile is accumulated in scratch */
    /* Edge down to which tiles are cut to feed more threads. Of f32 with 16 threads 128 cubed has 119 GFLOP/s with 96,
     * and 310 with 32. */
    LEAST_TILE = 32,
    ALONE = 96 * 96 * 96 /* multiplications, of whole kernel tiles, that are not worth a second thread */
};

struct blocked {
    const struct gemm_call *call;
    enum dtype dtype, out_dtype, computed;
    struct kernels_gemm micro;
    kernel_load *load;
    size_t element; /* bytes of a unit, which has the size of the type that is computed in */
    size_t tile_rows, tile_columns;
    size_t tiles_down, tiles_across;
    size_t depth;    /* of a panel, in units; at most SINGLE_DEPTH */
    bool accumulate; /* in scratch: several panels, and out's type is too narrow to hold their sums */
    /* offsets into a thread's scratch */
    size_t at_b, at_acc, at_tile, scratch;
};

/* The state of one thread. */
struct part {
    const struct blocked *b;
    const struct gemm_problem *g;
    unsigned char *sliver_a, *panel_b, *acc, *tile;
    size_t row, column, rows, columns; /* of the tile, in out */
    size_t direct_b;                   /* the tile's columns of B below it are used where they lie */
};

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t greatest(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The part of a matrix that is multiplied at a time: lines across k, and elements along k. */
struct run {
    ptrdiff_t along, down; /* strides in elements: to the next line, and along k */
    size_t p0, length;     /* elements along k */
};

static size_t units(const struct blocked *b, size_t length)
{
    return round_up((length + b->micro.pair - 1) / b->micro.pair, b->micro.run);
}

/* Whether these elements along k are whole units, as many as the kernel multiplies at a time. */
static bool is_whole(const struct blocked *b, size_t length)
{
    return length % (b->micro.pair * b->micro.run) == 0;
}

static const unsigned char *address(const struct blocked *b, const struct gemm_matrix *m, const struct run *r,
                                    size_t line)
{
    return m->at + ((ptrdiff_t)line * r->along + (ptrdiff_t)r->p0 * r->down) * (ptrdiff_t)dtype_size(b->dtype);
}

/* into[p][width] = the matrix's lines [from, from + lines); missing lines and units are zero. */
static void pack(const struct blocked *b, void *into, const struct gemm_matrix *m, const struct run *r, size_t from,
                 size_t lines, size_t width)
{
    if (lines < width || !is_whole(b, r->length))
        memset(into, 0, units(b, r->length) * width * b->element);
    b->load(into, width, address(b, m, r, from), r->length, lines, r->down, r->along);
}

/* The same as into[lines][p], with as many units a line as r has. */
static void pack_rows(const struct blocked *b, void *into, const struct gemm_matrix *m, const struct run *r,
                      size_t from, size_t lines)
{
    const size_t depth = units(b, r->length);

    if (lines < b->micro.mr || !is_whole(b, r->length))
        memset(into, 0, b->micro.mr * depth * b->element);
    b->micro.load_rows(into, depth, address(b, m, r, from), lines, r->length, r->along, r->down);
}

/* Whether units of the matrix can be read where they lie: `lines` of them, within `most` bytes, so that they do not
 * displace each other from the first-level cache. */
static bool is_direct(const struct blocked *b, const struct run *r, size_t lines, size_t most)
{
    const size_t spread = (lines * (size_t)labs(r->along) + r->length * (size_t)labs(r->down)) * dtype_size(b->dtype);

    if (b->micro.pair > 1)
        return r->down == 1 && is_whole(b, r->length) && spread <= most;
    return b->dtype == b->computed && spread <= most;
}

/* Packs the columns of B that are not used where they lie. */
static void pack_b(const struct part *t, const struct run *r)
{
    const struct blocked *b = t->b;
    const size_t nr = b->micro.nr, depth = units(b, r->length);

    for (size_t j = t->direct_b; j < t->columns; j += nr)
        pack(b, t->panel_b + j * depth * b->element, &t->g->b, r, t->column + j, least(nr, t->columns - j), nr);
}

static void finish_micro_tile(const struct part *t, size_t i, size_t j, bool first)
{
    const struct blocked *b = t->b;
    const struct gemm_problem *g = t->g;
    const size_t rows = least(b->micro.mr, t->rows - i), columns = least(b->micro.nr, t->columns - j);

    if (b->accumulate)
        b->call->kernels->store[b->computed](t->tile + (i * b->tile_columns + j) * b->element,
                                             (ptrdiff_t)b->tile_columns, 1, t->acc, b->micro.nr, rows, columns, 1,
                                             first ? 0 : 1);
    else
        b->call->kernels->store[b->out_dtype](
            g->out.at + ((ptrdiff_t)(t->row + i) * g->out.row + (ptrdiff_t)(t->column + j) * g->out.column) *
                            (ptrdiff_t)dtype_size(b->out_dtype),
            g->out.row, g->out.column, t->acc, b->micro.nr, rows, columns, g->alpha, first ? g->beta : 1);
}

/* Multiplies one sliver of A, `rows` high, by all columns of the tile. */
static void run_sliver(const struct part *t, size_t i, const struct run *along_a, const struct run *along_b)
{
    const struct blocked *b = t->b;
    const size_t rows = least(b->micro.mr, t->rows - i), depth = units(b, along_a->length), step = b->micro.mr_step;
    const size_t height = least((rows - 1) / step, MICRO_HEIGHTS - 1), size = dtype_size(b->dtype);
    const unsigned char *a = t->sliver_a;
    ptrdiff_t row = (ptrdiff_t)b->element, next = (ptrdiff_t)(b->micro.mr * b->element);

    if (rows % step == 0 && is_direct(b, along_a, rows, DIRECT_A)) {
        a = address(b, &t->g->a, along_a, t->row + i);
        row = along_a->along * (ptrdiff_t)size;
        next = along_a->down * (ptrdiff_t)(size * b->micro.pair);
    } else if (b->micro.load_rows) {
        pack_rows(b, t->sliver_a, &t->g->a, along_a, t->row + i, rows);
        row = (ptrdiff_t)(depth * b->element);
        next = (ptrdiff_t)b->element;
    } else {
        pack(b, t->sliver_a, &t->g->a, along_a, t->row + i, rows, b->micro.mr);
    }
    for (size_t j = 0; j < t->columns; j += b->micro.nr) {
        if (j < t->direct_b)
            b->micro.micro[height](depth, a, row, next, address(b, &t->g->b, along_b, t->column + j),
                                   along_b->down * (ptrdiff_t)size, t->acc);
        else
            b->micro.micro[height](depth, a, row, next, t->panel_b + j * depth * b->element,
                                   (ptrdiff_t)(b->micro.nr * b->element), t->acc);
        finish_micro_tile(t, i, j, along_a->p0 == 0);
    }
}

static void run_tile(struct part *t)
{
    const struct blocked *b = t->b;
    const struct gemm_problem *g = t->g;
    const size_t k = (size_t)g->k, most = b->depth * b->micro.pair, nr = b->micro.nr;

    for (size_t p0 = 0; p0 < k && !pool_is_stopped(b->call->pool); p0 += most) {
        const size_t length = least(most, k - p0);
        const struct run along_a = {g->a.row, g->a.column, p0, length}, along_b = {g->b.column, g->b.row, p0, length};
        const bool direct = along_b.along == 1 && b->micro.pair == 1 && is_direct(b, &along_b, nr, DIRECT_B);

        t->direct_b = direct ? t->columns / nr * nr : 0;
        pack_b(t, &along_b);
        for (size_t i = 0; i < t->rows; i += b->micro.mr)
            run_sliver(t, i, &along_a, &along_b);
    }
    if (b->accumulate)
        b->call->kernels->store[b->out_dtype](
            g->out.at + ((ptrdiff_t)t->row * g->out.row + (ptrdiff_t)t->column * g->out.column) *
                            (ptrdiff_t)dtype_size(b->out_dtype),
            g->out.row, g->out.column, t->tile, b->tile_columns, t->rows, t->columns, g->alpha, g->beta);
}

static void blocked_item(void *context, unsigned thread, size_t item)
{
    const struct blocked *b = context;
    const size_t across = item % b->tiles_across, rest = item / b->tiles_across;
    const struct gemm_problem g = gemm_problem_at(b->call, rest / b->tiles_down);
    unsigned char *scratch = pool_scratch(b->call->pool, thread);
    struct part t = {.b = b,
                     .g = &g,
                     .sliver_a = scratch,
                     .panel_b = scratch + b->at_b,
                     .acc = scratch + b->at_acc,
                     .tile = scratch + b->at_tile,
                     .row = rest % b->tiles_down * b->tile_rows,
                     .column = across * b->tile_columns};

    t.rows = least(b->tile_rows, (size_t)g.m - t.row);
    t.columns = least(b->tile_columns, (size_t)g.n - t.column);
    if (b->micro.begin)
        b->micro.begin();
    run_tile(&t);
    if (b->micro.end)
        b->micro.end();
}

/* Cuts `n` into equal parts of at most `most`, each a multiple of `unit` but the last. */
static size_t even(size_t n, size_t most, size_t unit, size_t *ret_parts)
{
    size_t parts = (n + most - 1) / most, part = round_up((n + parts - 1) / parts, unit);

    *ret_parts = (n + part - 1) / part;
    return part;
}

static void choose_tiles(struct blocked *b, const struct gemm_problem *g)
{
    const size_t m = (size_t)g->m, n = (size_t)g->n, mr = b->micro.mr, nr = b->micro.nr;
    const size_t threads = pool_threads(b->call->pool), batches = b->call->plan->gemm.batch_count;
    const size_t edge = greatest(LEAST_TILE, greatest(mr, nr)); /* a kernel's tile cannot be cut */
    const double work = (double)round_up(m, mr) * (double)round_up(n, nr) * (double)g->k;
    const bool alone = threads == 1 || work <= ALONE;
    size_t rows = b->accumulate ? HALF_TILE_ROWS : TILE_ROWS, columns;

    columns = (b->depth > DEPTH ? DEEP_PANEL_BYTES : PANEL_BYTES) / (b->depth * b->element);
    columns = columns > 4096 ? 4096 : columns;
    for (;;) {
        b->tile_rows = even(m, round_up(rows, mr), mr, &b->tiles_down);
        b->tile_columns = even(n, round_up(columns, nr), nr, &b->tiles_across);
        if (alone || b->tiles_down * b->tiles_across * batches >= 2 * threads)
            return;
        if (b->tile_rows >= b->tile_columns && b->tile_rows > edge)
            rows = b->tile_rows / 2;
        else if (b->tile_columns > edge)
            columns = b->tile_columns / 2;
        else
            return;
    }
}

int gemm_blocked(const struct gemm_call *call, const struct kernels_gemm *micro, struct error *e)
{
    const struct gemm_problem g = gemm_problem_at(call, 0);
    const enum dtype computed = kernels_compute_dtype(g.dtype);
    struct blocked b = {.call = call,
                        .dtype = g.dtype,
                        .out_dtype = g.out_dtype,
                        .computed = computed,
                        .micro = micro ? *micro : call->kernels->gemm[computed],
                        .element = dtype_size(computed)};

    b.load = b.micro.load ? b.micro.load : call->kernels->load[g.dtype];
    b.depth = units(&b, (size_t)g.k);
    if (b.depth > (g.out_dtype == computed ? DEPTH : SINGLE_DEPTH))
        b.depth = DEPTH;
    b.accumulate = g.out_dtype != computed && (size_t)g.k > b.depth * b.micro.pair;
    choose_tiles(&b, &g);
    b.at_b = round_up(b.micro.mr * b.depth * b.element, 64);
    b.at_acc = b.at_b + round_up(b.tile_columns * b.depth * b.element, 64);
    b.at_tile = b.at_acc + round_up(b.micro.mr * b.micro.nr * b.element, 64);
    b.scratch = b.at_tile + (b.accumulate ? b.tile_rows * b.tile_columns * b.element : 0);
    if (pool_reserve(call->pool, b.scratch, e) < 0)
        return -1;
    pool_run(call->pool, (size_t)call->plan->gemm.batch_count * b.tiles_down * b.tiles_across, blocked_item, &b);
    return 0;
}

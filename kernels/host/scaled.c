#include "scaled.h"

#include <stdlib.h>

#include "convert.h"

/* A block of the sums, and of the operands that are converted for it: 8 MiB of f32. */
enum { ROWS = 512, COLUMNS = 1024, DEPTH = 1024 };

enum {
    CONVERTED = 16 << 10, /* elements that a thread converts at a time */
    FINISHED = 16 << 10,  /* elements that a thread finishes at a time */
    WIDTH = 256           /* of them in its cache */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

struct plan scaled_product(const struct plan *plan)
{
    struct plan p = {.kind = PLAN_GEMM, .dtype = DTYPE_F32, .out_dtype = DTYPE_F32};

    p.gemm = (struct plan_gemm){.m = least(plan->gemm.m, ROWS),
                                .n = least(plan->gemm.n, COLUMNS),
                                .k = least(plan->gemm.k, DEPTH),
                                .batch_count = 1,
                                .alpha = 1,
                                .high_precision_only = true};
    p.gemm.a = (struct plan_matrix){.row = p.gemm.k, .column = 1};
    p.gemm.b = p.gemm.out = (struct plan_matrix){.row = p.gemm.n, .column = 1};
    return p;
}

/* ---- conversion ---- */

/* The values of all bytes. */
static void make_table(enum dtype dtype, float table[256])
{
    for (unsigned b = 0; b < 256; b++)
        table[b] = dtype == DTYPE_F8_E4M3 ? e4m3_to_f32((uint8_t)b) : e5m2_to_f32((uint8_t)b);
}

/* A block of one operand: rows × columns elements become rows of f32, one after the other. */
struct conversion {
    const float *table;
    const unsigned char *from;
    int64_t row, column; /* strides of `from` */
    float *into;
    int64_t rows, columns, step; /* rows of an item */
};

static void convert_item(void *context, unsigned thread, size_t item)
{
    const struct conversion *c = context;
    const int64_t first = (int64_t)item * c->step, last = least(c->rows, first + c->step);

    (void)thread;
    if (c->row == 1 && c->column != 1) { /* along memory */
        for (int64_t j = 0; j < c->columns; j++)
            for (int64_t i = first; i < last; i++)
                c->into[i * c->columns + j] = c->table[c->from[i + j * c->column]];
        return;
    }
    for (int64_t i = first; i < last; i++)
        for (int64_t j = 0; j < c->columns; j++)
            c->into[i * c->columns + j] = c->table[c->from[i * c->row + j * c->column]];
}

static void convert(struct pool *pool, struct conversion *c)
{
    c->step = CONVERTED / c->columns + 1;
    pool_run(pool, (size_t)((c->rows + c->step - 1) / c->step), convert_item, c);
}

/* ---- a block of the result ---- */

/* One matrix of the batch. */
struct matrix {
    const struct linear_call *call;
    float tables[2][256]; /* of a and b */
    const unsigned char *a, *b;
    const unsigned char *scale_a, *scale_b;
    unsigned char *out;
    float *a_block, *b_block, *sums;
};

struct finish {
    const struct matrix *x;
    int64_t i, j, rows, columns, step; /* where the block is, its size, and rows of an item */
};

/* `n` neighbours of row i, from column j on. */
static void finish_part(const struct finish *f, const float *sums, int64_t i, int64_t j, int64_t n)
{
    const struct plan *plan = f->x->call->plan;
    const struct plan_gemm *g = &plan->gemm;
    const struct kernels *k = f->x->call->kernels;
    float x[WIDTH], scale[WIDTH], of_row;

    k->load[DTYPE_F32](&of_row, 1, f->x->scale_a + (uint64_t)(i * g->extra[0].row) * sizeof(float), 1, 1, 0, 1);
    k->load[DTYPE_F32](scale, WIDTH, f->x->scale_b + (uint64_t)(j * g->extra[1].column) * sizeof(float), 1, (size_t)n,
                       0, g->extra[1].column);
    for (int64_t c = 0; c < n; c++) {
        const float scaled = sums[c] * of_row;

        x[c] = scaled * scale[c];
    }
    k->store[plan->out_dtype](f->x->out + (uint64_t)(i * g->out.row + j * g->out.column) * dtype_size(plan->out_dtype),
                              0, g->out.column, x, WIDTH, 1, (size_t)n, 1, 0);
}

static void finish_item(void *context, unsigned thread, size_t item)
{
    const struct finish *f = context;
    const int64_t first = (int64_t)item * f->step;

    (void)thread;
    for (int64_t i = first; i < f->rows && i < first + f->step; i++)
        for (int64_t j = 0; j < f->columns; j += WIDTH)
            finish_part(f, f->x->sums + i * f->columns + j, f->i + i, f->j + j, least(WIDTH, f->columns - j));
}

/* Adds up the block's sums, a part of k at a time. */
static int sum_block(const struct matrix *x, const struct finish *f, struct error *e)
{
    const struct plan_gemm *g = &x->call->plan->gemm;
    struct plan product = scaled_product(x->call->plan);
    unsigned char *const pointers[] = {(unsigned char *)x->a_block, (unsigned char *)x->b_block,
                                       (unsigned char *)x->sums};
    int64_t l = 0;

    do { /* once for k = 0, which makes zeros */
        const int64_t depth = least(g->k - l, DEPTH);
        struct conversion a = {x->tables[0], x->a + f->i * g->a.row + l * g->a.column,
                               g->a.row,     g->a.column,
                               x->a_block,   f->rows,
                               depth,        0};
        struct conversion b = {x->tables[1], x->b + l * g->b.row + f->j * g->b.column,
                               g->b.row,     g->b.column,
                               x->b_block,   depth,
                               f->columns,   0};

        if (depth) {
            convert(x->call->pool, &a);
            convert(x->call->pool, &b);
        }
        product.gemm.m = f->rows;
        product.gemm.n = f->columns;
        product.gemm.k = depth;
        product.gemm.a.row = depth;
        product.gemm.b.row = product.gemm.out.row = f->columns;
        product.gemm.beta = l > 0;
        if (x->call->product(x->call->context, &product, pointers, e) < 0)
            return -1;
        l += depth;
    } while (l < g->k && !pool_is_stopped(x->call->pool));
    return 0;
}

static int run_matrix(const struct matrix *x, struct error *e)
{
    const struct plan_gemm *g = &x->call->plan->gemm;

    for (int64_t i = 0; i < g->m; i += ROWS)
        for (int64_t j = 0; j < g->n && !pool_is_stopped(x->call->pool); j += COLUMNS) {
            struct finish f = {.x = x, .i = i, .j = j};

            f.rows = least(g->m - i, ROWS);
            f.columns = least(g->n - j, COLUMNS);
            f.step = FINISHED / f.columns + 1;
            if (sum_block(x, &f, e) < 0)
                return -1;
            pool_run(x->call->pool, (size_t)((f.rows + f.step - 1) / f.step), finish_item, &f);
        }
    return 0;
}

int scaled_run(const struct linear_call *call, struct error *e)
{
    const struct plan *plan = call->plan;
    const struct plan_gemm *g = &plan->gemm, largest = scaled_product(plan).gemm;
    const size_t of_a = (size_t)(largest.m * largest.k), of_b = (size_t)(largest.k * largest.n);
    float *memory = malloc((of_a + of_b + (size_t)(largest.m * largest.n)) * sizeof(*memory));
    struct matrix x = {.call = call, .a_block = memory};
    int r = 0;

    if (!memory)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the sums of a product");
    x.b_block = memory + of_a;
    x.sums = memory + of_a + of_b;
    make_table(plan->dtype, x.tables[0]);
    make_table(g->b_dtype, x.tables[1]);
    for (uint64_t batch = 0; batch < g->batch_count && r == 0 && !pool_is_stopped(call->pool); batch++) {
        x.a = call->pointers[PLAN_GEMM_A] + linear_batch_offset(g, &g->a, batch);
        x.b = call->pointers[PLAN_GEMM_B] + linear_batch_offset(g, &g->b, batch);
        x.scale_a = call->pointers[PLAN_GEMM_SCALE_A] + linear_batch_offset(g, &g->extra[0], batch) * sizeof(float);
        x.scale_b = call->pointers[PLAN_GEMM_SCALE_B] + linear_batch_offset(g, &g->extra[1], batch) * sizeof(float);
        x.out = call->pointers[plan_gemm_out(g)] + linear_batch_offset(g, &g->out, batch) * dtype_size(plan->out_dtype);
        r = run_matrix(&x, e);
    }
    free(memory);
    return r;
}

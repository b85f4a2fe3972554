#include "device.h"

#include <string.h>

enum {
    MAX_OPERANDS = 3,
    ITEM_BYTES = 128 << 10,  /* bytes of an operand in an item of the pool */
    ALONE_BYTES = 384 << 10, /* with fewer bytes of all operands, waking other threads costs more than it saves */
    LINE = 64,               /* bytes of a cache line */
    TILE = 1024,             /* elements of a tile whose operands may have to be gathered */
    TILE_EDGE = 32,          /* edges of a tile with a transposed input, so that both sides use whole cache lines */
    LONG_ROW = 16384         /* elements of a tile without gathering */
};

/* ---- contiguous ---- */

struct contiguous {
    kernel_elementwise *kernel;
    unsigned char *pointers[MAX_OPERANDS]; /* a, b (or a again), out */
    size_t size, count, step;
    bool bypass;
};

static void contiguous_item(void *context, unsigned thread, size_t item)
{
    const struct contiguous *c = context;
    size_t from = item * c->step, n = c->count - from < c->step ? c->count - from : c->step;

    (void)thread;
    c->kernel(c->pointers[2] + from * c->size, c->pointers[0] + from * c->size, c->pointers[1] + from * c->size, n,
              c->bypass);
}

/* ---- strided: tiles over the two innermost dimensions ---- */

struct operand {
    unsigned char *base;
    ptrdiff_t strides[TENSOR_MAX_RANK]; /* bytes */
};

struct strided {
    kernel_elementwise *kernel;
    size_t size; /* bytes of an element */
    unsigned n_inputs, rank;
    bool bypass;
    int64_t shape[TENSOR_MAX_RANK];        /* rank ≥ 2 */
    struct operand operands[MAX_OPERANDS]; /* inputs, then out */
    size_t tile_rows, tile_columns;
    size_t tiles_down, tiles_across; /* tiles of a matrix of the two innermost dimensions */
    size_t tiles, step;              /* number of all tiles; tiles of an item */
};

#define DEFINE_MOVE(name, type)                                                                                        \
    static void gather_##name(type *into, const unsigned char *from, size_t rows, size_t columns, ptrdiff_t row,       \
                              ptrdiff_t column)                                                                        \
    {                                                                                                                  \
        if (column == 0) {                                                                                             \
            for (size_t r = 0; r < rows; r++, into += columns, from += row)                                            \
                for (size_t c = 0; c < columns; c++)                                                                   \
                    into[c] = *(const type *)from;                                                                     \
        } else if (column == sizeof(type)) {                                                                           \
            for (size_t r = 0; r < rows; r++, into += columns, from += row)                                            \
                memcpy(into, from, columns * sizeof(type));                                                            \
        } else if (row < column) { /* in the order of memory, for whole cache lines */                                 \
            for (size_t c = 0; c < columns; c++)                                                                       \
                for (size_t r = 0; r < rows; r++)                                                                      \
                    into[r * columns + c] = *(const type *)(from + (ptrdiff_t)r * row + (ptrdiff_t)c * column);        \
        } else {                                                                                                       \
            for (size_t r = 0; r < rows; r++, into += columns, from += row)                                            \
                for (size_t c = 0; c < columns; c++)                                                                   \
                    into[c] = *(const type *)(from + (ptrdiff_t)c * column);                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static void scatter_##name(unsigned char *into, const type *from, size_t rows, size_t columns, ptrdiff_t row,      \
                               ptrdiff_t column)                                                                       \
    {                                                                                                                  \
        for (size_t r = 0; r < rows; r++, from += columns, into += row)                                                \
            for (size_t c = 0; c < columns; c++)                                                                       \
                *(type *)(into + (ptrdiff_t)c * column) = from[c];                                                     \
    }

DEFINE_MOVE(8, uint8_t)
DEFINE_MOVE(16, uint16_t)
DEFINE_MOVE(32, uint32_t)
DEFINE_MOVE(64, uint64_t)

static void gather(void *into, const unsigned char *from, size_t size, size_t rows, size_t columns, ptrdiff_t row,
                   ptrdiff_t column)
{
    if (size == 1)
        gather_8(into, from, rows, columns, row, column);
    else if (size == 2)
        gather_16(into, from, rows, columns, row, column);
    else if (size == 4)
        gather_32(into, from, rows, columns, row, column);
    else
        gather_64(into, from, rows, columns, row, column);
}

static void scatter(unsigned char *into, const void *from, size_t size, size_t rows, size_t columns, ptrdiff_t row,
                    ptrdiff_t column)
{
    if (size == 1)
        scatter_8(into, from, rows, columns, row, column);
    else if (size == 2)
        scatter_16(into, from, rows, columns, row, column);
    else if (size == 4)
        scatter_32(into, from, rows, columns, row, column);
    else
        scatter_64(into, from, rows, columns, row, column);
}

/* Whether a tile of the operand is one contiguous run. */
static bool is_run(const struct strided *s, const struct operand *o, size_t rows, size_t columns)
{
    return o->strides[s->rank - 1] == (ptrdiff_t)s->size &&
           (rows == 1 || o->strides[s->rank - 2] == (ptrdiff_t)(columns * s->size));
}

/* `at`: the tile's first element in each operand. */
static void run_tile(const struct strided *s, unsigned char *const *at, size_t rows, size_t columns)
{
    uint64_t buffers[MAX_OPERANDS][TILE];
    const unsigned char *in[2] = {NULL, NULL};
    const struct operand *out = &s->operands[s->n_inputs];
    bool direct = is_run(s, out, rows, columns);
    void *result = direct ? (void *)at[s->n_inputs] : buffers[MAX_OPERANDS - 1];

    for (unsigned i = 0; i < s->n_inputs; i++) {
        const struct operand *o = &s->operands[i];

        in[i] = at[i];
        if (is_run(s, o, rows, columns))
            continue;
        gather(buffers[i], at[i], s->size, rows, columns, o->strides[s->rank - 2], o->strides[s->rank - 1]);
        in[i] = (const unsigned char *)buffers[i];
    }
    s->kernel(result, in[0], in[1], rows * columns, direct && s->bypass);
    if (!direct)
        scatter(at[s->n_inputs], result, s->size, rows, columns, out->strides[s->rank - 2], out->strides[s->rank - 1]);
}

/* Runs `step` tiles from number item·step on, in the order across, down, outer dimensions. */
static void strided_item(void *context, unsigned thread, size_t item)
{
    const struct strided *s = context;
    size_t tile = item * s->step, end = s->tiles - tile < s->step ? s->tiles : tile + s->step;
    const size_t height = (size_t)s->shape[s->rank - 2], width = (size_t)s->shape[s->rank - 1];

    (void)thread;
    while (tile < end) {
        size_t across = tile % s->tiles_across, rest = tile / s->tiles_across, down = rest % s->tiles_down;
        size_t row = down * s->tile_rows, rows = height - row < s->tile_rows ? height - row : s->tile_rows;
        unsigned char *line[MAX_OPERANDS];

        rest /= s->tiles_down;
        for (unsigned t = 0; t <= s->n_inputs; t++)
            line[t] = s->operands[t].base + (ptrdiff_t)row * s->operands[t].strides[s->rank - 2];
        for (unsigned d = s->rank - 2; d-- > 0;) {
            ptrdiff_t index = (ptrdiff_t)(rest % (size_t)s->shape[d]);

            rest /= (size_t)s->shape[d];
            for (unsigned t = 0; t <= s->n_inputs; t++)
                line[t] += index * s->operands[t].strides[d];
        }
        for (; across < s->tiles_across && tile < end; across++, tile++) {
            size_t column = across * s->tile_columns;
            size_t columns = width - column < s->tile_columns ? width - column : s->tile_columns;
            unsigned char *at[MAX_OPERANDS];

            for (unsigned t = 0; t <= s->n_inputs; t++)
                at[t] = line[t] + (ptrdiff_t)column * s->operands[t].strides[s->rank - 1];
            run_tile(s, at, rows, columns);
        }
    }
}

/* Makes dimension d the second innermost one. */
static void bring_in(struct strided *s, unsigned d)
{
    for (; d + 2 < s->rank; d++) {
        int64_t n = s->shape[d];

        s->shape[d] = s->shape[d + 1];
        s->shape[d + 1] = n;
        for (unsigned t = 0; t <= s->n_inputs; t++) {
            ptrdiff_t stride = s->operands[t].strides[d];

            s->operands[t].strides[d] = s->operands[t].strides[d + 1];
            s->operands[t].strides[d + 1] = stride;
        }
    }
}

/* Finds the dimension along which a transposed input is contiguous; rank: there is none. */
static unsigned find_across(const struct strided *s)
{
    ptrdiff_t least = LINE;
    unsigned found = s->rank;

    for (unsigned t = 0; t < s->n_inputs; t++) {
        const ptrdiff_t *strides = s->operands[t].strides;

        if (strides[s->rank - 1] < LINE)
            continue;
        for (unsigned d = 0; d + 1 < s->rank; d++)
            if (strides[d] > 0 && strides[d] < least && s->shape[d] > 1) {
                least = strides[d];
                found = d;
            }
    }
    return found;
}

static void choose_tiles(struct strided *s)
{
    const unsigned across = find_across(s), inner = s->rank - 1;
    const size_t width = (size_t)s->shape[inner];
    bool needs_gather = false;
    size_t outer = 1;

    for (unsigned t = 0; t <= s->n_inputs; t++)
        if (s->operands[t].strides[inner] != (ptrdiff_t)s->size)
            needs_gather = true;
    s->tile_rows = 1;
    if (across < s->rank) {
        bring_in(s, across);
        s->tile_rows = s->tile_columns = TILE_EDGE;
        if (width < TILE_EDGE) {
            s->tile_columns = width;
            s->tile_rows = TILE / width;
        } else if ((size_t)s->shape[inner - 1] < TILE_EDGE) {
            s->tile_rows = (size_t)s->shape[inner - 1];
            s->tile_columns = TILE / s->tile_rows;
        }
    } else if (width > TILE / 4) {
        s->tile_columns = needs_gather ? TILE : LONG_ROW;
    } else {
        s->tile_columns = width;
        s->tile_rows = TILE / width;
    }
    s->bypass = s->bypass && s->tile_rows == 1 && width >= TILE;
    s->tiles_down = ((size_t)s->shape[inner - 1] + s->tile_rows - 1) / s->tile_rows;
    s->tiles_across = (width + s->tile_columns - 1) / s->tile_columns;
    for (unsigned d = 0; d + 1 < inner; d++)
        outer *= (size_t)s->shape[d];
    s->tiles = outer * s->tiles_down * s->tiles_across;
}

static void run_strided(struct pool *pool, struct strided *s, const struct plan_elementwise *p,
                        unsigned char *const *pointers, bool alone)
{
    size_t tile_bytes;
    unsigned first = p->rank == 1; /* a plan of rank 1 becomes a row */

    s->rank = p->rank + first;
    s->shape[0] = 1;
    memcpy(s->shape + first, p->shape, p->rank * sizeof(p->shape[0]));
    for (unsigned t = 0; t <= s->n_inputs; t++) {
        s->operands[t].base = pointers[t];
        s->operands[t].strides[0] = 0;
        for (unsigned d = 0; d < p->rank; d++)
            s->operands[t].strides[d + first] = (ptrdiff_t)p->strides[t][d] * (ptrdiff_t)s->size;
    }
    choose_tiles(s);
    tile_bytes = s->tile_rows * s->tile_columns * s->size;
    s->step = alone ? s->tiles : ITEM_BYTES / tile_bytes + 1;
    pool_run(pool, (s->tiles + s->step - 1) / s->step, strided_item, s);
}

void elementwise_run(struct pool *pool, const struct kernels *kernels, const struct op *op, const struct plan *plan,
                     unsigned char *const *pointers, bool bypass)
{
    const struct plan_elementwise *p = &plan->elementwise;
    const size_t size = dtype_size(plan->dtype);
    const unsigned n_inputs = op->n_inputs;
    kernel_elementwise *kernel = kernels->elementwise[op->id][plan->dtype];
    const uint64_t bytes = p->count * size;
    const bool alone = bytes * (n_inputs + 1) <= ALONE_BYTES;

    if (plan_is_empty(plan))
        return;
    if (p->contiguous) {
        struct contiguous c = {.kernel = kernel,
                               .pointers = {pointers[0], pointers[n_inputs > 1 ? 1 : 0], pointers[n_inputs]},
                               .size = size,
                               .count = p->count,
                               .step = alone ? p->count : ITEM_BYTES / size,
                               .bypass = bypass};

        pool_run(pool, (c.count + c.step - 1) / c.step, contiguous_item, &c);
    } else {
        struct strided s = {.kernel = kernel, .size = size, .n_inputs = n_inputs, .bypass = bypass};

        run_strided(pool, &s, p, pointers, alone);
    }
}

double elementwise_cost_ns(const struct op *op, const struct plan *plan)
{
    const struct plan_elementwise *p = &plan->elementwise;
    const double bytes = (double)p->count * (double)dtype_size(plan->dtype) * (op->n_inputs + 1);

    return p->contiguous ? bytes / 16 : bytes / 16 + 1.5 * (double)p->count;
}

/* Chooses what is copied and where to, in panels that fit into the scratch memory. */
#include "repack_sketch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char repack_padded[] = "padded", repack_bf16x3[] = "bf16x3", repack_bf16x6[] = "bf16x6";

enum {
    OUT_OPERAND = 2,      /* of a plan */
    ALIGNMENT_BYTES = 16, /* that the fast kernels need of rows and extents */
    ROW_BYTES = 128,      /* rows of copies begin on such boundaries: 2 to 8 % faster than 16 (H100, 4097 × 4097) */
    REGION_BYTES = 256,   /* copies begin on these */
    PANEL_STEP = 256,     /* panels are multiples of so many rows or columns of out */
    PANELS_MAX = 64,      /* of one product */
    ACTIONS_MAX = 256     /* launches of one product; a stream has 512 in flight */
};

static const struct mode {
    const char *name;
    unsigned pieces; /* 0: bits are copied */
    enum cuda_ops_repack_kind kind;
} modes[] = {
    {repack_padded, 0, CUDA_OPS_REPACK_2},
    {repack_bf16x3, 2, CUDA_OPS_REPACK_BF16X2},
    {repack_bf16x6, 3, CUDA_OPS_REPACK_BF16X3},
};

static const struct mode *mode_of(const char *variant)
{
    const struct mode *m = modes;

    while (strcmp(m->name, variant) != 0)
        m++;
    return m;
}

const char *const *repack_variants(enum dtype dtype)
{
    static const char *const of_16_bits[] = {repack_padded, NULL};
    static const char *const of_f32[] = {repack_bf16x3, repack_bf16x6, repack_padded, NULL};
    static const char *const none[] = {NULL};

    return dtype == DTYPE_F32 ? of_f32 : dtype_size(dtype) == 2 ? of_16_bits : none;
}

static int refuse(struct error *e, const char *variant, const char *why)
{
    error_set(e, ERROR_INVALID_ARGUMENT, "variant \"%s\" %s; leave the variant out", variant, why);
    return error_detail_text(e, "variant", variant);
}

int repack_check(const struct plan *plan, const char *variant, struct error *e)
{
    const struct mode *mode = mode_of(variant);

    if (plan->kind != PLAN_GEMM || plan_is_empty(plan) || plan->gemm.k == 0)
        return refuse(e, variant, "is for products of matrices that are not empty");
    if (mode->pieces && (plan->dtype != DTYPE_F32 || plan->out_dtype != DTYPE_F32))
        return refuse(e, variant, "multiplies f32");
    if (dtype_size(plan->dtype) != 2 && plan->dtype != DTYPE_F32)
        return refuse(e, variant, "is for elements of 16 and 32 bits");
    if (mode->pieces == 2 && !plan->gemm.in_pieces)
        return refuse(e, variant, "is less exact than precision \"highest\" allows: ask for precision \"high\"");
    if (plan->gemm.k > INT32_MAX / 4 || plan->gemm.m > INT32_MAX / 4 || plan->gemm.n > INT32_MAX / 4)
        return refuse(e, variant, "takes dimensions up to 2^29");
    return 0;
}

/* ---- one panel's layout ---- */

/* An operand: x is m of a, and n of b. */
struct side {
    const struct plan_matrix *source;
    int64_t x, x_stride, k_stride;
    bool along_k; /* its rows, and its copy's, lie along k */
    bool is_copied;
    /* The copy: `rows` of `columns`, a piece; `ld` from row to row; `matrix` elements of all pieces of one matrix. */
    uint64_t offset;
    int64_t rows, columns, ld, matrix;
};

struct panel {
    const struct plan *plan;
    const struct mode *mode;
    struct plan_gemm g;
    uint64_t addresses[PLAN_MAX_OPERANDS];
    struct side a, b;
    bool out_is_copied, out_is_wide; /* wide: its rows lie along n */
    int64_t m, n, k;                 /* of the product, with zeros; k of one piece */
    int64_t out_ld, out_matrix;      /* of out's copy */
    uint64_t out_offset, bytes;
};

static int64_t round_up(int64_t x, int64_t step)
{
    return (x + step - 1) / step * step;
}

static size_t out_size(const struct plan *plan)
{
    return dtype_size(plan->out_dtype);
}

/* Of an element that is multiplied. */
static size_t in_size(const struct panel *p)
{
    return p->mode->pieces ? 2 : dtype_size(p->plan->dtype);
}

static int64_t width_of(const struct panel *p)
{
    return ALIGNMENT_BYTES / (int64_t)in_size(p);
}

/* Whether rows with `other` between `others` of them begin on 16-byte boundaries, and their elements follow each other.
 * A dimension of size 1 has no stride. */
static bool is_aligned(const struct plan_gemm *g, const struct plan_matrix *m, uint64_t address, size_t size,
                       int64_t extent, int64_t unit, int64_t others, int64_t other)
{
    uint64_t bits = address;

    if (extent > 1 && unit != 1)
        return false;
    if (others > 1)
        bits |= (uint64_t)other * size;
    for (unsigned d = 0; d < g->batch_rank; d++)
        bits |= (uint64_t)m->batch[d] * size;
    return bits % ALIGNMENT_BYTES == 0;
}

static struct side side_of(const struct plan_gemm *g, const struct plan_matrix *m, bool is_a)
{
    struct side s = {.source = m, .x = is_a ? g->m : g->n};

    s.x_stride = is_a ? m->row : m->column;
    s.k_stride = is_a ? m->column : m->row;
    s.along_k = s.x == 1 || (g->k > 1 && s.k_stride == 1) || (s.x_stride != 1 && s.k_stride < s.x_stride);
    return s;
}

static bool side_is_aligned(const struct panel *p, const struct side *s, uint64_t address)
{
    const size_t size = dtype_size(p->plan->dtype);

    return s->along_k ? is_aligned(&p->g, s->source, address, size, p->g.k, s->k_stride, s->x, s->x_stride)
                      : is_aligned(&p->g, s->source, address, size, s->x, s->x_stride, p->g.k, s->k_stride);
}

static bool out_is_aligned(const struct panel *p)
{
    const struct plan_gemm *g = &p->g;
    const uint64_t address = p->addresses[OUT_OPERAND];
    const size_t size = out_size(p->plan);

    return p->out_is_wide ? is_aligned(g, &g->out, address, size, g->n, g->out.column, g->m, g->out.row)
                          : is_aligned(g, &g->out, address, size, g->m, g->out.row, g->n, g->out.column);
}

/* Matrices of the batch that the operand has: dimensions along which it repeats count once. */
static uint64_t batches_of(const struct plan_gemm *g, const struct plan_matrix *m)
{
    uint64_t n = 1;

    for (unsigned d = 0; d < g->batch_rank; d++)
        if (m->batch[d] != 0)
            n *= (uint64_t)g->batch_shape[d];
    return n;
}

static uint64_t place(struct panel *p, uint64_t bytes)
{
    const uint64_t at = p->bytes;

    p->bytes += (bytes + REGION_BYTES - 1) / REGION_BYTES * REGION_BYTES;
    return at;
}

static void place_side(struct panel *p, struct side *s, int64_t x)
{
    const int64_t pieces = p->mode->pieces ? p->mode->pieces : 1, width = width_of(p);

    if (!s->is_copied)
        return;
    s->rows = s->along_k ? x : p->k;
    s->columns = round_up(s->along_k ? p->k : x, width);
    s->ld = round_up(s->along_k ? pieces * s->columns : s->columns, ROW_BYTES / (int64_t)in_size(p));
    s->matrix = s->rows * s->ld * (s->along_k ? 1 : pieces);
    s->offset = place(p, (uint64_t)s->matrix * in_size(p) * batches_of(&p->g, s->source));
}

/* Operands that do not lie well are copied. An extent that is no multiple of 16 bytes is filled up with zeros, which
 * needs copies of both matrices that have it: the fast kernels are out of question for the product also where only one
 * matrix has rows along it. */
static void choose_copies(struct panel *p)
{
    const struct plan_gemm *g = &p->g;
    const int64_t width = width_of(p);
    const bool pad_m = g->m % width && (!p->a.along_k || !p->out_is_wide);
    const bool pad_n = g->n % width && (!p->b.along_k || p->out_is_wide);
    const bool pad_k = g->k % width && (p->a.along_k || p->b.along_k);

    p->a.is_copied = p->mode->pieces || pad_m || pad_k || !side_is_aligned(p, &p->a, p->addresses[0]);
    p->b.is_copied = p->mode->pieces || pad_n || pad_k || !side_is_aligned(p, &p->b, p->addresses[1]);
    p->out_is_copied = pad_m || pad_n || !out_is_aligned(p);
}

static void lay_out(struct panel *p)
{
    const struct plan_gemm *g = &p->g;
    const int64_t width = width_of(p);

    p->a = side_of(g, &g->a, true);
    p->b = side_of(g, &g->b, false);
    p->out_is_wide = g->n == 1 ? g->m == 1 : g->out.column == 1 || g->out.row != 1;
    choose_copies(p);
    p->m = p->a.is_copied && p->out_is_copied ? round_up(g->m, width) : g->m;
    p->n = p->b.is_copied && p->out_is_copied ? round_up(g->n, width) : g->n;
    p->k = p->a.is_copied && p->b.is_copied ? round_up(g->k, width) : g->k;
    p->bytes = 0;
    place_side(p, &p->a, p->m);
    place_side(p, &p->b, p->n);
    if (p->out_is_copied) {
        p->out_ld = round_up(p->out_is_wide ? p->n : p->m, ROW_BYTES / (int64_t)out_size(p->plan));
        p->out_matrix = p->out_ld * (p->out_is_wide ? p->m : p->n);
        p->out_offset = place(p, (uint64_t)p->out_matrix * out_size(p->plan) * g->batch_count);
    }
}

/* ---- one panel's actions ---- */

static struct repack_action *add_action(struct repack_sketch *s, enum repack_action_kind kind)
{
    struct repack_action *a;

    if (s->n % 16 == 0) {
        a = realloc(s->actions, (s->n + 16) * sizeof(*a));
        if (!a)
            return NULL;
        s->actions = a;
    }
    a = &s->actions[s->n++];
    memset(a, 0, sizeof(*a));
    a->kind = kind;
    return a;
}

/* The batch dimensions of an operand, of which the copy has those along which it does not repeat, innermost first. */
static void set_batches(const struct plan_gemm *g, const struct plan_matrix *m, const int64_t *copy, bool to_copy,
                        struct cuda_ops_repack_part *part)
{
    for (unsigned d = g->batch_rank; d-- > 0;) {
        if (m->batch[d] == 0)
            continue;
        part->batch_shape[part->batch_rank] = (uint64_t)g->batch_shape[d];
        part->batch[part->batch_rank] = (uint64_t)(to_copy ? m->batch[d] : copy[d]);
        part->to_batch[part->batch_rank] = (uint64_t)(to_copy ? copy[d] : m->batch[d]);
        part->batch_rank++;
    }
}

/* Strides between the copies of a batch's matrices. */
static void copy_batches(const struct plan_gemm *g, const struct plan_matrix *m, int64_t matrix, int64_t *ret_strides)
{
    for (unsigned d = g->batch_rank; d-- > 0;) {
        ret_strides[d] = m->batch[d] ? matrix : 0;
        if (m->batch[d])
            matrix *= g->batch_shape[d];
    }
}

static struct cuda_ops_repack_part part_of_side(const struct panel *p, const struct side *s, uint64_t address,
                                                bool is_a)
{
    struct cuda_ops_repack_part part = {.from = address, .to = s->offset, .to_column = 1};
    const int64_t last = (int64_t)p->mode->pieces - 1;
    int64_t copy[TENSOR_MAX_RANK];

    part.rows = (uint64_t)(s->along_k ? s->x : p->g.k);
    part.columns = (uint64_t)(s->along_k ? p->g.k : s->x);
    part.row = (uint64_t)(s->along_k ? s->x_stride : s->k_stride);
    part.column = (uint64_t)(s->along_k ? s->k_stride : s->x_stride);
    part.to_rows = (uint64_t)s->rows;
    part.to_columns = (uint64_t)s->columns;
    part.to_row = (uint64_t)s->ld;
    if (part.columns == 1)
        part.column = 1;
    for (int64_t i = 0; i <= last; i++)
        part.pieces[i] = (uint64_t)((is_a ? i : last - i) * (s->along_k ? s->columns : s->rows * s->ld));
    copy_batches(&p->g, s->source, s->matrix, copy);
    set_batches(&p->g, s->source, copy, true, &part);
    return part;
}

static int copy_inputs(const struct panel *p, struct repack_sketch *sketch)
{
    const struct side *sides[] = {&p->a, &p->b};
    struct repack_action *action;
    unsigned n = 0;

    if (!p->a.is_copied && !p->b.is_copied)
        return 0;
    action = add_action(sketch, REPACK_COPY);
    if (!action)
        return -1;
    action->copy.kind = p->mode->pieces                   ? p->mode->kind
                        : dtype_size(p->plan->dtype) == 2 ? CUDA_OPS_REPACK_2
                                                          : CUDA_OPS_REPACK_4;
    for (unsigned i = 0; i < 2; i++)
        if (sides[i]->is_copied) {
            action->copy.to_scratch[n] = true;
            action->copy.params.parts[n++] = part_of_side(p, sides[i], p->addresses[i], i == 0);
        }
    return 0;
}

/* The strides of out's copy. */
static struct plan_matrix out_copy(const struct panel *p)
{
    struct plan_matrix m = {.row = p->out_is_wide ? p->out_ld : 1, .column = p->out_is_wide ? 1 : p->out_ld};

    copy_batches(&p->g, &p->g.out, p->out_matrix, m.batch);
    return m;
}

static int copy_out(const struct panel *p, bool to_copy, struct repack_sketch *sketch)
{
    struct repack_action *action = add_action(sketch, REPACK_COPY);
    const struct plan_matrix *there = &p->g.out, here = out_copy(p);
    const struct plan_matrix *from = to_copy ? there : &here, *to = to_copy ? &here : there;
    const uint64_t address = p->addresses[OUT_OPERAND];
    struct cuda_ops_repack_part *part;

    if (!action)
        return -1;
    action->copy.kind = out_size(p->plan) == 2 ? CUDA_OPS_REPACK_2 : CUDA_OPS_REPACK_4;
    action->copy.to_scratch[0] = to_copy;
    action->copy.from_scratch[0] = !to_copy;
    part = &action->copy.params.parts[0];
    part->from = to_copy ? address : p->out_offset;
    part->to = to_copy ? p->out_offset : address;
    part->rows = (uint64_t)(p->out_is_wide ? p->g.m : p->g.n);
    part->columns = (uint64_t)(p->out_is_wide ? p->g.n : p->g.m);
    part->row = (uint64_t)(p->out_is_wide ? from->row : from->column);
    part->column = (uint64_t)(p->out_is_wide ? from->column : from->row);
    part->to_rows = !to_copy ? part->rows : (uint64_t)(p->out_is_wide ? p->m : p->n);
    part->to_columns = !to_copy ? part->columns : (uint64_t)p->out_ld;
    part->to_row = (uint64_t)(p->out_is_wide ? to->row : to->column);
    part->to_column = (uint64_t)(p->out_is_wide ? to->column : to->row);
    if (part->columns == 1) {
        part->column = 1;
        part->to_column = part->to_columns == 1 ? 1 : part->to_column;
    }
    set_batches(&p->g, there, here.batch, to_copy, part);
    return 0;
}

/* A side's matrix in the product. */
static struct plan_matrix matrix_of(const struct panel *p, const struct side *s, bool is_a)
{
    struct plan_matrix m = *s->source;

    if (s->is_copied) {
        const int64_t x_stride = s->along_k ? s->ld : 1, k_stride = s->along_k ? 1 : s->ld;

        m.row = is_a ? x_stride : k_stride;
        m.column = is_a ? k_stride : x_stride;
        copy_batches(&p->g, s->source, s->matrix, m.batch);
    }
    return m;
}

/* The product of `k` steps of the copies, from k_a and k_b on: `first` of all is added to beta · out. */
static int multiply(const struct panel *p, int64_t k_a, int64_t k_b, int64_t k, double scale, bool first,
                    struct repack_sketch *sketch)
{
    struct repack_action *action = add_action(sketch, REPACK_PRODUCT);
    const size_t size = p->mode->pieces ? 2 : dtype_size(p->plan->dtype);
    struct plan_gemm *g;

    if (!action)
        return -1;
    action->product.plan = *p->plan;
    if (p->mode->pieces)
        action->product.plan.dtype = DTYPE_BF16;
    g = &action->product.plan.gemm;
    *g = p->g;
    g->m = p->m;
    g->n = p->n;
    g->k = k;
    g->a = matrix_of(p, &p->a, true);
    g->b = matrix_of(p, &p->b, false);
    g->alpha *= scale;
    if (!first)
        g->beta = 1;
    memcpy(action->product.addresses, p->addresses, sizeof(p->addresses));
    if (p->a.is_copied)
        action->product.addresses[0] = p->a.offset + (uint64_t)(k_a * g->a.column) * size;
    if (p->b.is_copied)
        action->product.addresses[1] = p->b.offset + (uint64_t)(k_b * g->b.row) * size;
    action->product.in_scratch[0] = p->a.is_copied;
    action->product.in_scratch[1] = p->b.is_copied;
    if (p->out_is_copied) {
        g->out = out_copy(p);
        action->product.addresses[OUT_OPERAND] = p->out_offset;
        action->product.in_scratch[OUT_OPERAND] = true;
    }
    return 0;
}

/* Steps along k of the first pieces' product between its additions in f32. What tensor cores cut off grows with them:
 * 3.6e-9 of the sum a step, for sums of one sign (H100). "bf16x3" may have 4e-5 of it. "bf16x6" is to stay below twice
 * what f32 has, which grows with the square root of k: 1.2e-6 at 8192. */
static int64_t chunk_of(const struct panel *p)
{
    if (p->mode->pieces == 2)
        return 8192;
    return p->k >= 8192 ? 1024 : p->k >= 2048 ? 512 : 256;
}

static int multiply_pieces(const struct panel *p, struct repack_sketch *sketch)
{
    const int64_t last = (int64_t)p->mode->pieces - 1, chunk = chunk_of(p);
    bool first = true;

    for (int64_t sum = last; sum > 0; sum--) {
        if (multiply(p, 0, (last - sum) * p->k, (sum + 1) * p->k, ldexp(1.0, (int)(-7 * sum)), first, sketch) < 0)
            return -1;
        first = false;
    }
    for (int64_t k = 0; k < p->k; k += chunk)
        if (multiply(p, k, last * p->k + k, p->k - k < chunk ? p->k - k : chunk, 1, false, sketch) < 0)
            return -1;
    return 0;
}

static int add_panel(const struct panel *p, struct repack_sketch *sketch)
{
    if (copy_inputs(p, sketch) < 0 || (p->out_is_copied && p->g.beta != 0 && copy_out(p, true, sketch) < 0))
        return -1;
    if (p->mode->pieces ? multiply_pieces(p, sketch) < 0 : multiply(p, 0, 0, p->k, 1, true, sketch) < 0)
        return -1;
    return p->out_is_copied ? copy_out(p, false, sketch) : 0;
}

/* ---- panels ---- */

/* Extents of a panel: of the outermost batch dimension, of m and of n. */
struct extents {
    int64_t batch, m, n;
};

static int64_t half(int64_t x)
{
    return round_up((x + 1) / 2, PANEL_STEP);
}

/* Makes panels smaller; false: there are none. */
static bool shrink(struct extents *e)
{
    if (e->batch > 1)
        e->batch = (e->batch + 1) / 2;
    else if (e->m >= e->n && e->m > PANEL_STEP)
        e->m = half(e->m);
    else if (e->n > PANEL_STEP)
        e->n = half(e->n);
    else
        return false;
    return true;
}

static struct panel panel_at(const struct plan *plan, const struct mode *mode, const uint64_t *addresses,
                             struct extents at, struct extents size)
{
    const size_t in = dtype_size(plan->dtype), out = out_size(plan);
    struct panel p = {.plan = plan, .mode = mode, .g = plan->gemm};
    struct plan_gemm *g = &p.g;

    if (g->batch_rank) {
        const int64_t all = g->batch_shape[0];

        g->batch_shape[0] = all - at.batch < size.batch ? all - at.batch : size.batch;
        g->batch_count = g->batch_count / (uint64_t)all * (uint64_t)g->batch_shape[0];
    }
    g->m = g->m - at.m < size.m ? g->m - at.m : size.m;
    g->n = g->n - at.n < size.n ? g->n - at.n : size.n;
    p.addresses[0] = addresses[0] + (uint64_t)(at.batch * g->a.batch[0] + at.m * g->a.row) * in;
    p.addresses[1] = addresses[1] + (uint64_t)(at.batch * g->b.batch[0] + at.n * g->b.column) * in;
    p.addresses[OUT_OPERAND] = addresses[OUT_OPERAND] +
                               (uint64_t)(at.batch * g->out.batch[0] + at.m * g->out.row + at.n * g->out.column) * out;
    lay_out(&p);
    return p;
}

static int64_t parts_of(int64_t whole, int64_t part)
{
    return (whole + part - 1) / part;
}

static int64_t batch_of(const struct plan *plan)
{
    return plan->gemm.batch_rank ? plan->gemm.batch_shape[0] : 1;
}

/* The largest panels that fit. */
static int choose_panels(const struct plan *plan, const struct mode *mode, const uint64_t *addresses,
                         uint64_t scratch_max, struct extents *size, struct error *e)
{
    const struct plan_gemm *g = &plan->gemm;

    *size = (struct extents){batch_of(plan), g->m, g->n};
    while (panel_at(plan, mode, addresses, (struct extents){0, 0, 0}, *size).bytes > scratch_max)
        if (!shrink(size) ||
            parts_of(batch_of(plan), size->batch) * parts_of(g->m, size->m) * parts_of(g->n, size->n) > PANELS_MAX)
            return refuse(e, mode->name, "needs more scratch memory than [cuda] repack_bytes allows");
    return 0;
}

int repack_sketch(const struct plan *plan, const uint64_t *addresses, const char *variant, uint64_t scratch_max,
                  struct repack_sketch *ret_sketch, struct error *e)
{
    const struct mode *mode = mode_of(variant);
    struct repack_sketch s = {.variant = mode->name};
    struct extents size, at;

    if (repack_check(plan, variant, e) < 0 || choose_panels(plan, mode, addresses, scratch_max, &size, e) < 0)
        return -1;
    for (at.batch = 0; at.batch < batch_of(plan); at.batch += size.batch)
        for (at.n = 0; at.n < plan->gemm.n; at.n += size.n)
            for (at.m = 0; at.m < plan->gemm.m; at.m += size.m) {
                const struct panel p = panel_at(plan, mode, addresses, at, size);

                if (add_panel(&p, &s) < 0)
                    goto free_sketch;
                if (p.bytes > s.scratch_bytes)
                    s.scratch_bytes = p.bytes;
            }
    if (s.n > ACTIONS_MAX) {
        refuse(e, variant, "would need too many launches");
        repack_sketch_free(&s);
        return -1;
    }
    if (s.scratch_bytes == 0) {
        refuse(e, variant, "copies operands that do not lie on 16-byte boundaries, and all do");
        repack_sketch_free(&s);
        return -1;
    }
    *ret_sketch = s;
    return 0;

free_sketch:
    repack_sketch_free(&s);
    return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the parts of a gemm");
}

void repack_sketch_free(struct repack_sketch *s)
{
    free(s->actions);
    s->actions = NULL;
    s->n = 0;
}

/* ---- whether it pays ---- */

/* What an H100 does, as measured at 4096 and 8192: products of 2·m·n·k operations a second with operands as they are
 * and as copies, and bytes that a copy reads and writes. Another device is slower in all of these by much the same
 * factor, so the choice is the same. */
#define MISALIGNED_16 130e12
#define ALIGNED_16    650e12
#define MISALIGNED_32 115e12
#define ALIGNED_32    270e12
#define F32           51e12
#define BYTES         2.5e12
#define LAUNCH        4e-6 /* seconds between one launch and the next */

const char *repack_estimate(const struct plan *plan, const uint64_t *addresses)
{
    const struct plan_gemm *g = &plan->gemm;
    const double work = 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)g->batch_count;
    const bool in_pieces = plan->dtype == DTYPE_F32 && g->in_pieces && g->high_precision_only;
    const bool is_16 = dtype_size(plan->dtype) == 2;
    const char *variant = in_pieces ? repack_bf16x3 : repack_padded;
    struct panel p;
    struct error ignored;
    double copied;

    if ((plan->dtype == DTYPE_F32 && g->high_precision_only && !in_pieces) || repack_check(plan, variant, &ignored) < 0)
        return NULL;
    p = panel_at(plan, mode_of(variant), addresses, (struct extents){0, 0, 0},
                 (struct extents){batch_of(plan), g->m, g->n});
    copied = (double)p.bytes * 2 / BYTES + LAUNCH * (1 + p.out_is_copied);
    if (in_pieces) /* a product of the first pieces, and one of twice their k, which each read or write out */
        return 3 * work / ALIGNED_16 + copied + 3 * 4 * (double)(g->m * g->n) * (double)g->batch_count / BYTES +
                           LAUNCH <
                       work / F32
                   ? variant
                   : NULL;
    if (p.bytes == 0)
        return NULL;
    return work / (is_16 ? ALIGNED_16 : ALIGNED_32) + copied < work / (is_16 ? MISALIGNED_16 : MISALIGNED_32) ? variant
                                                                                                              : NULL;
}

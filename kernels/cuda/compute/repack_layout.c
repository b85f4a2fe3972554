/* Chooses which operands of a panel are copied, and the layout of the copies. */
#include "repack_sketch.h"

enum {
    ALIGNMENT_BYTES = 16, /* the fast kernels need it of rows and extents */
    ROW_BYTES = 128,      /* alignment of the copies' rows: 2 to 8 % faster than 16 (H100, 4097 × 4097) */
    REGION_BYTES = 256    /* alignment of the copies' beginnings */
};

static int64_t width_of(const struct repack_panel *p)
{
    return ALIGNMENT_BYTES / (int64_t)repack_in_size(p);
}

/* Tests whether all rows begin on 16-byte boundaries, and are contiguous. A row has `extent` elements with the stride
 * `unit`; there are `others` rows with the stride `other`. A dimension of size 1 has no stride. */
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

static struct repack_side side_of(const struct plan_gemm *g, const struct plan_matrix *m, bool is_a)
{
    struct repack_side s = {.source = m, .x = is_a ? g->m : g->n};

    s.x_stride = is_a ? m->row : m->column;
    s.k_stride = is_a ? m->column : m->row;
    s.along_k = s.x == 1 || (g->k > 1 && s.k_stride == 1) || (s.x_stride != 1 && s.k_stride < s.x_stride);
    return s;
}

static bool side_is_aligned(const struct repack_panel *p, const struct repack_side *s, uint64_t address)
{
    const size_t size = dtype_size(p->plan->dtype);

    return s->along_k ? is_aligned(&p->g, s->source, address, size, p->g.k, s->k_stride, s->x, s->x_stride)
                      : is_aligned(&p->g, s->source, address, size, s->x, s->x_stride, p->g.k, s->k_stride);
}

static bool out_is_aligned(const struct repack_panel *p)
{
    const struct plan_gemm *g = &p->g;
    const uint64_t address = p->addresses[plan_gemm_out(&p->g)];
    const size_t size = repack_out_size(p->plan);

    return p->out_is_wide ? is_aligned(g, &g->out, address, size, g->n, g->out.column, g->m, g->out.row)
                          : is_aligned(g, &g->out, address, size, g->m, g->out.row, g->n, g->out.column);
}

/* Counts the operand's matrices: a batch dimension along which the operand repeats counts once. */
static uint64_t batches_of(const struct plan_gemm *g, const struct plan_matrix *m)
{
    uint64_t n = 1;

    for (unsigned d = 0; d < g->batch_rank; d++)
        if (m->batch[d] != 0)
            n *= (uint64_t)g->batch_shape[d];
    return n;
}

static uint64_t place(struct repack_panel *p, uint64_t bytes)
{
    const uint64_t at = p->bytes;

    p->bytes += (bytes + REGION_BYTES - 1) / REGION_BYTES * REGION_BYTES;
    return at;
}

static void place_side(struct repack_panel *p, struct repack_side *s, int64_t x)
{
    const int64_t pieces = p->mode->pieces ? p->mode->pieces : 1, width = width_of(p);

    if (!s->is_copied)
        return;
    s->rows = s->along_k ? x : p->k;
    s->columns = repack_round_up(s->along_k ? p->k : x, width);
    s->ld = repack_round_up(s->along_k ? pieces * s->columns : s->columns, ROW_BYTES / (int64_t)repack_in_size(p));
    s->matrix = s->rows * s->ld * (s->along_k ? 1 : pieces);
    s->offset = place(p, (uint64_t)s->matrix * repack_in_size(p) * batches_of(&p->g, s->source));
}

/* Misaligned operands are copied. An extent that is no multiple of 16 bytes is padded with zeros in both matrices that
 * have it, also where only one has rows along it: otherwise the product has no fast kernel. */
static void choose_copies(struct repack_panel *p)
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

static void lay_out(struct repack_panel *p)
{
    const struct plan_gemm *g = &p->g;
    const int64_t width = width_of(p);

    p->a = side_of(g, &p->plan->gemm.a, true);
    p->b = side_of(g, &p->plan->gemm.b, false);
    p->out_is_wide = g->n == 1 ? g->m == 1 : g->out.column == 1 || g->out.row != 1;
    choose_copies(p);
    p->m = p->a.is_copied && p->out_is_copied ? repack_round_up(g->m, width) : g->m;
    p->n = p->b.is_copied && p->out_is_copied ? repack_round_up(g->n, width) : g->n;
    p->k = p->a.is_copied && p->b.is_copied ? repack_round_up(g->k, width) : g->k;
    p->bytes = 0;
    place_side(p, &p->a, p->m);
    place_side(p, &p->b, p->n);
    p->bias_is_copied = g->has_bias && p->bytes && (p->n != g->n || p->addresses[PLAN_GEMM_BIAS] % ALIGNMENT_BYTES);
    if (p->bias_is_copied)
        p->bias_offset = place(p, (uint64_t)p->n * repack_in_size(p));
    if (p->out_is_copied) {
        p->out_ld = repack_round_up(p->out_is_wide ? p->n : p->m, ROW_BYTES / (int64_t)repack_out_size(p->plan));
        p->out_matrix = p->out_ld * (p->out_is_wide ? p->m : p->n);
        p->out_offset = place(p, (uint64_t)p->out_matrix * repack_out_size(p->plan) * g->batch_count);
    }
}

struct repack_panel repack_lay_out(const struct plan *plan, const struct repack_mode *mode, const uint64_t *addresses,
                                   struct repack_extents at, struct repack_extents size)
{
    const size_t in = dtype_size(plan->dtype), out = repack_out_size(plan);
    struct repack_panel p = {.plan = plan, .mode = mode, .g = plan->gemm};
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
    if (g->has_bias)
        p.addresses[PLAN_GEMM_BIAS] = addresses[PLAN_GEMM_BIAS] + (uint64_t)(at.n * g->bias.column) * in;
    p.addresses[plan_gemm_out(g)] =
        addresses[plan_gemm_out(g)] +
        (uint64_t)(at.batch * g->out.batch[0] + at.m * g->out.row + at.n * g->out.column) * out;
    lay_out(&p);
    return p;
}

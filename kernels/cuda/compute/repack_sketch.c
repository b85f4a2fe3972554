/* Plans copies and products, in panels that fit into the scratch memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blaslt/blaslt.h"
#include "repack_sketch.h"

/* ---- which operands of a panel are copied, and the layout of the copies ---- */

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

/* Returns the panel at position `at`, of that size or cut off at the end of out. */
static struct repack_panel repack_lay_out(const struct plan *plan, const struct repack_mode *mode,
                                          const uint64_t *addresses, struct repack_extents at,
                                          struct repack_extents size)
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

/* ---- activated ---- */

/* With fewer operations the second launch costs more than the library's faster product gains. */
static const double LEAST_WORK = 0x1p26;

static struct plan product_of(const struct plan *plan)
{
    struct plan product = *plan;

    product.gemm.activation = PLAN_NONE;
    return product;
}

static int check_activated(const struct plan *plan, struct error *e)
{
    const bool fits = plan->kind == PLAN_GEMM && !plan_is_empty(plan) && plan->gemm.has_bias &&
                      plan->gemm.activation == PLAN_GELU && plan->dtype == plan->out_dtype &&
                      (plan->dtype == DTYPE_F32 || plan->dtype == DTYPE_F64);
    struct plan product;

    if (fits) {
        product = product_of(plan);
        return blaslt_check(&product, e);
    }
    error_set(e, ERROR_INVALID_ARGUMENT,
              "variant \"%s\" is for a bias and activation \"gelu\" with f32 or f64; leave the variant out",
              repack_activated);
    return error_detail_text(e, "variant", repack_activated);
}

bool repack_should_activate(const struct plan *plan)
{
    const struct plan_gemm *g = &plan->gemm;
    struct error ignored;

    return 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)g->batch_count >= LEAST_WORK && g->m > 16 &&
           g->n > 16 && check_activated(plan, &ignored) == 0;
}

static void add_dimension(struct plan_elementwise *p, int64_t size, int64_t stride)
{
    if (size == 1)
        return;
    p->shape[p->rank] = size;
    p->strides[0][p->rank] = p->strides[1][p->rank] = stride;
    p->rank++;
}

/* Describes all of out for an element-wise kernel. Dimensions that are contiguous become one. */
static struct plan_elementwise all_of_out(const struct plan_gemm *g)
{
    const bool by_rows = g->out.column == 1 || g->n == 1;
    struct plan_elementwise p = {.count = (uint64_t)g->m * (uint64_t)g->n * g->batch_count};
    unsigned kept = 0;

    for (unsigned d = 0; d < g->batch_rank; d++)
        add_dimension(&p, g->batch_shape[d], g->out.batch[d]);
    add_dimension(&p, by_rows ? g->m : g->n, by_rows ? g->out.row : g->out.column);
    add_dimension(&p, by_rows ? g->n : g->m, by_rows ? g->out.column : g->out.row);
    if (p.rank == 0) {
        p.rank = 1;
        p.shape[0] = p.strides[0][0] = p.strides[1][0] = 1;
    }
    for (unsigned d = 1; d < p.rank; d++) {
        if (p.strides[0][kept] == p.shape[d] * p.strides[0][d]) {
            p.shape[kept] *= p.shape[d];
        } else {
            kept++;
            p.shape[kept] = p.shape[d];
        }
        p.strides[0][kept] = p.strides[1][kept] = p.strides[0][d];
    }
    p.rank = kept + 1;
    p.contiguous = p.rank == 1 && p.strides[0][0] == 1;
    return p;
}

static int sketch_activated(const struct plan *plan, const uint64_t *addresses, struct repack_sketch *ret_sketch,
                            struct error *e)
{
    struct repack_action *actions;

    if (check_activated(plan, e) < 0)
        return -1;
    actions = calloc(2, sizeof(*actions));
    if (!actions)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the parts of a gemm");
    actions[0].kind = REPACK_PRODUCT;
    actions[0].product.plan = product_of(plan);
    for (unsigned i = 0; i < PLAN_MAX_OPERANDS; i++)
        actions[0].product.addresses[i] = addresses[i];
    actions[1].kind = REPACK_GELU;
    actions[1].gelu.all = all_of_out(&plan->gemm);
    actions[1].gelu.dtype = plan->dtype;
    actions[1].gelu.address = addresses[plan_gemm_out(&plan->gemm)];
    *ret_sketch = (struct repack_sketch){.variant = repack_activated, .n = 2, .actions = actions};
    return 0;
}

/* ---- copies ---- */

const char repack_padded[] = "padded", repack_bf16x3[] = "bf16x3", repack_bf16x6[] = "bf16x6",
           repack_activated[] = "activated";

enum {
    PANEL_STEP = 256, /* rows and columns of a panel are multiples of this */
    PANELS_MAX = 64,  /* panels of one product */
    ACTIONS_MAX = 256 /* launches of one product; a stream has 512 in flight */
};

static const struct repack_mode modes[] = {
    {repack_padded, 0, CUDA_OPS_REPACK_2},
    {repack_bf16x3, 2, CUDA_OPS_REPACK_BF16X2},
    {repack_bf16x6, 3, CUDA_OPS_REPACK_BF16X3},
};

const struct repack_mode *repack_mode(const char *variant)
{
    const struct repack_mode *m = modes;

    while (strcmp(m->name, variant) != 0)
        m++;
    return m;
}

const char *const *repack_variants(enum op_id op, enum dtype dtype)
{
    static const char *const padded[] = {repack_padded, NULL};
    static const char *const of_f32[] = {repack_bf16x3, repack_bf16x6, repack_padded, NULL};
    static const char *const linear[] = {repack_padded, repack_activated, NULL}, *const none[] = {NULL};

    if (op != OP_GEMM && op != OP_LINEAR)
        return none;
    if (op == OP_LINEAR && (dtype == DTYPE_F32 || dtype == DTYPE_F64))
        return linear;
    return op == OP_GEMM && dtype == DTYPE_F32 ? of_f32 : padded;
}

static int refuse(struct error *e, const char *variant, const char *why)
{
    error_set(e, ERROR_INVALID_ARGUMENT, "variant \"%s\" %s; leave the variant out", variant, why);
    return error_detail_text(e, "variant", variant);
}

static bool bias_is_vector(const struct plan *plan)
{
    const struct plan_gemm *g = &plan->gemm;
    bool vector = (g->m == 1 || g->bias.row == 0) && (g->n == 1 || g->bias.column == 1) && g->activation != PLAN_GELU;

    for (unsigned d = 0; d < g->batch_rank; d++)
        vector = vector && g->bias.batch[d] == 0;
    return vector && plan->dtype == plan->out_dtype;
}

int repack_check(const struct plan *plan, const char *variant, struct error *e)
{
    const struct repack_mode *mode;

    if (strcmp(variant, repack_activated) == 0)
        return check_activated(plan, e);
    mode = repack_mode(variant);
    if (plan->kind != PLAN_GEMM || plan_is_empty(plan) || plan->gemm.k == 0)
        return refuse(e, variant, "is for products of matrices that are not empty");
    if (plan->gemm.has_bias && (mode->pieces || !bias_is_vector(plan)))
        return refuse(e, variant,
                      mode->pieces ? "has no bias" : "takes a vector [n] of out's dtype as bias, and no gelu");
    if (mode->pieces && (plan->dtype != DTYPE_F32 || plan->out_dtype != DTYPE_F32))
        return refuse(e, variant, "multiplies f32");
    if (mode->pieces == 2 && !plan->gemm.in_pieces)
        return refuse(e, variant, "is less exact than precision \"highest\" allows: ask for precision \"high\"");
    if (plan->gemm.k > INT32_MAX / 4 || plan->gemm.m > INT32_MAX / 4 || plan->gemm.n > INT32_MAX / 4)
        return refuse(e, variant, "takes dimensions up to 2^29");
    return 0;
}

bool repack_is_as_exact(const struct plan *plan)
{
    return plan->gemm.k >= 1024;
}

/* ---- the actions of a panel ---- */

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

/* The batch dimensions of an operand, innermost first. The copy has no dimensions along which the operand repeats. */
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

static void copy_batches(const struct plan_gemm *g, const struct plan_matrix *m, int64_t matrix, int64_t *ret_strides)
{
    for (unsigned d = g->batch_rank; d-- > 0;) {
        ret_strides[d] = m->batch[d] ? matrix : 0;
        if (m->batch[d])
            matrix *= g->batch_shape[d];
    }
}

static struct cuda_ops_repack_part part_of_side(const struct repack_panel *p, const struct repack_side *s,
                                                uint64_t address, bool is_a)
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

static enum cuda_ops_repack_kind kind_of_size(size_t size)
{
    return size == 2 ? CUDA_OPS_REPACK_2 : size == 4 ? CUDA_OPS_REPACK_4 : CUDA_OPS_REPACK_8;
}

static enum cuda_ops_repack_kind kind_of(const struct repack_panel *p)
{
    return p->mode->pieces ? p->mode->kind : kind_of_size(dtype_size(p->plan->dtype));
}

/* Copies the bias with zeros behind it, since the padded product has more columns. */
static int copy_bias(const struct repack_panel *p, struct repack_sketch *sketch)
{
    struct repack_action *action = add_action(sketch, REPACK_COPY);

    if (!action)
        return -1;
    action->copy.kind = kind_of(p);
    action->copy.to_scratch[0] = true;
    action->copy.params.parts[0] = (struct cuda_ops_repack_part){.from = p->addresses[PLAN_GEMM_BIAS],
                                                                 .to = p->bias_offset,
                                                                 .rows = 1,
                                                                 .columns = (uint64_t)p->g.n,
                                                                 .column = 1,
                                                                 .to_rows = 1,
                                                                 .to_columns = (uint64_t)p->n,
                                                                 .to_column = 1};
    return 0;
}

static int copy_inputs(const struct repack_panel *p, struct repack_sketch *sketch)
{
    const struct repack_side *sides[] = {&p->a, &p->b};
    struct repack_action *action;
    unsigned n = 0;

    if (!p->a.is_copied && !p->b.is_copied)
        return 0;
    action = add_action(sketch, REPACK_COPY);
    if (!action)
        return -1;
    action->copy.kind = kind_of(p);
    for (unsigned i = 0; i < 2; i++)
        if (sides[i]->is_copied) {
            action->copy.to_scratch[n] = true;
            action->copy.params.parts[n++] = part_of_side(p, sides[i], p->addresses[i], i == 0);
        }
    return 0;
}

static struct plan_matrix out_copy(const struct repack_panel *p)
{
    struct plan_matrix m = {.row = p->out_is_wide ? p->out_ld : 1, .column = p->out_is_wide ? 1 : p->out_ld};

    copy_batches(&p->g, &p->g.out, p->out_matrix, m.batch);
    return m;
}

static int copy_out(const struct repack_panel *p, bool to_copy, struct repack_sketch *sketch)
{
    struct repack_action *action = add_action(sketch, REPACK_COPY);
    const struct plan_matrix *there = &p->g.out, here = out_copy(p);
    const struct plan_matrix *from = to_copy ? there : &here, *to = to_copy ? &here : there;
    const uint64_t address = p->addresses[plan_gemm_out(&p->g)];
    struct cuda_ops_repack_part *part;

    if (!action)
        return -1;
    action->copy.kind = kind_of_size(repack_out_size(p->plan));
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

static struct plan_matrix matrix_of(const struct repack_panel *p, const struct repack_side *s, bool is_a)
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

/* Multiplies `k` steps of the copies, from k_a and k_b on; the `first` product is added to beta · out. */
static int multiply(const struct repack_panel *p, int64_t k_a, int64_t k_b, int64_t k, double scale, bool first,
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
        action->product.addresses[plan_gemm_out(g)] = p->out_offset;
        action->product.in_scratch[plan_gemm_out(g)] = true;
    }
    if (p->bias_is_copied) {
        action->product.addresses[PLAN_GEMM_BIAS] = p->bias_offset;
        action->product.in_scratch[PLAN_GEMM_BIAS] = true;
    }
    return 0;
}

/* The chunk: steps along k of the first pieces' product between its additions in f32. Tensor cores truncate, and the
 * error of sums of one sign grows with the chunk: 1.7e-6 of the sum with 1024 steps, 3e-5 with 8192 (H100), so "bf16x3"
 * stays below 4e-5. f32 has 1.2e-6 at 8192, and less at a smaller k. Each chunk costs an addition to all of out. */
static int64_t chunk_of(const struct repack_panel *p)
{
    if (p->mode->pieces == 2)
        return 8192;
    return p->k >= 8192 ? 1024 : p->k >= 2048 ? 512 : 256;
}

static int multiply_pieces(const struct repack_panel *p, struct repack_sketch *sketch)
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

static int add_panel(const struct repack_panel *p, struct repack_sketch *sketch)
{
    if (copy_inputs(p, sketch) < 0 || (p->bias_is_copied && copy_bias(p, sketch) < 0) ||
        (p->out_is_copied && p->g.beta != 0 && copy_out(p, true, sketch) < 0))
        return -1;
    if (p->mode->pieces ? multiply_pieces(p, sketch) < 0 : multiply(p, 0, 0, p->k, 1, true, sketch) < 0)
        return -1;
    return p->out_is_copied ? copy_out(p, false, sketch) : 0;
}

/* ---- panels ---- */

static int64_t half(int64_t x)
{
    return repack_round_up((x + 1) / 2, PANEL_STEP);
}

/* False: panels cannot become smaller. */
static bool shrink(struct repack_extents *e)
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

static int64_t parts_of(int64_t whole, int64_t part)
{
    return (whole + part - 1) / part;
}

static int choose_panels(const struct plan *plan, const struct repack_mode *mode, const uint64_t *addresses,
                         uint64_t scratch_max, struct repack_extents *size, struct error *e)
{
    const struct plan_gemm *g = &plan->gemm;

    *size = (struct repack_extents){repack_batch(plan), g->m, g->n};
    while (repack_lay_out(plan, mode, addresses, (struct repack_extents){0, 0, 0}, *size).bytes > scratch_max)
        if (!shrink(size) ||
            parts_of(repack_batch(plan), size->batch) * parts_of(g->m, size->m) * parts_of(g->n, size->n) > PANELS_MAX)
            return refuse(e, mode->name, "needs more scratch memory than [cuda] repack_bytes allows");
    return 0;
}

int repack_sketch(const struct plan *plan, const uint64_t *addresses, const char *variant, uint64_t scratch_max,
                  struct repack_sketch *ret_sketch, struct error *e)
{
    const struct repack_mode *mode;
    struct repack_sketch s = {0};
    struct repack_extents size, at;

    if (strcmp(variant, repack_activated) == 0)
        return sketch_activated(plan, addresses, ret_sketch, e);
    mode = repack_mode(variant);
    s.variant = mode->name;
    if (repack_check(plan, variant, e) < 0 || choose_panels(plan, mode, addresses, scratch_max, &size, e) < 0)
        return -1;
    for (at.batch = 0; at.batch < repack_batch(plan); at.batch += size.batch)
        for (at.n = 0; at.n < plan->gemm.n; at.n += size.n)
            for (at.m = 0; at.m < plan->gemm.m; at.m += size.m) {
                const struct repack_panel p = repack_lay_out(plan, mode, addresses, at, size);

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

/* ---- whether copies pay ---- */

/* Measured on an H100 from 512 to 8192 (f64: H200). Misaligned products above 4096 are up to 1.7 times as fast, and
 * copies still pay. On other devices all but f64 changes by much the same factor, so the choice is the same. */
#define FLOOR  10e-6 /* seconds that a product without a fast kernel takes at least */
#define LAUNCH 4e-6  /* from one launch to the next */
#define F32    41e12
#define COPIED 2.5e12

/* Operations per second, by the bytes of an element; f32 as tf32. */
static const struct rates {
    double misaligned, aligned;
} rates[] = {[2] = {90e12, 650e12}, [4] = {85e12, 270e12}, [8] = {41e12, 54e12}};

/* Estimates the time of copies and products. Each product writes all of out, and each after the first also reads it. */
static double seconds(const struct repack_panel *p, unsigned products, double work, double rate)
{
    const double out = (double)(p->g.m * p->g.n) * (double)p->g.batch_count * (double)repack_out_size(p->plan);

    return LAUNCH * (products + 1 + p->out_is_copied + p->bias_is_copied) + 2 * (double)p->bytes / COPIED +
           work / rate + (products - 1) * 3 * out / COPIED;
}

const char *repack_estimate(const struct plan *plan, const uint64_t *addresses)
{
    const struct plan_gemm *g = &plan->gemm;
    const double work = 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)g->batch_count;
    const bool is_f32 = plan->dtype == DTYPE_F32, in_pieces = is_f32 && g->in_pieces && g->high_precision_only;
    const char *variant = in_pieces ? repack_bf16x3 : repack_padded;
    const struct repack_extents all = {repack_batch(plan), g->m, g->n};
    const struct rates *of;
    struct error ignored;
    struct repack_panel p;

    if (repack_should_activate(plan))
        return repack_activated;
    if ((is_f32 && g->high_precision_only && !in_pieces) || repack_check(plan, variant, &ignored) < 0)
        return NULL;
    p = repack_lay_out(plan, repack_mode(variant), addresses, (struct repack_extents){0, 0, 0}, all);
    if (in_pieces)
        return seconds(&p, 2, 3 * work, rates[2].aligned) < FLOOR + work / F32 ? variant : NULL;
    if (p.bytes == 0)
        return NULL;
    of = &rates[dtype_size(plan->dtype)];
    return seconds(&p, 1, work, of->aligned) < FLOOR + work / of->misaligned ? variant : NULL;
}

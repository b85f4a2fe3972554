/* Shape rules of "gemm" (matrix products over the last two dimensions; leading ones broadcast as batches), "linear"
 * (gemm with a bias and an activation), and "scaled_gemm" (with a scale for each input). */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/op.h"

__attribute__((format(printf, 3, 4))) static int mismatch(struct error *e, const char *key, const char *format, ...)
{
    char why[160];
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    error_set(e, ERROR_SHAPE_MISMATCH, "%s: %s", key, why);
    return error_detail_text(e, "key", key);
}

static void set_matrix(struct plan_matrix *m, const struct tensor *t, bool transposed)
{
    m->row = tensor_stride(t, t->rank - (transposed ? 1 : 2));
    m->column = tensor_stride(t, t->rank - (transposed ? 2 : 1));
}

/* Sets batch dimension i of out, counted from the left; operands with fewer dimensions repeat. */
static int set_batch(const struct tensor *t, const struct tensor *out, unsigned i, const char *key, int64_t *ret_stride,
                     struct error *e)
{
    unsigned missing = out->rank - t->rank;

    *ret_stride = 0;
    if (i < missing || t->shape[i - missing] == 1)
        return 0;
    if (t->shape[i - missing] != out->shape[i])
        return mismatch(e, key, "batch dimension of size %lld does not broadcast to out's %lld",
                        (long long)t->shape[i - missing], (long long)out->shape[i]);
    *ret_stride = tensor_stride(t, i - missing);
    return 0;
}

static bool mergeable(const struct plan_gemm *p, unsigned outer, unsigned inner)
{
    int64_t both;

    for (unsigned t = 0; t <= plan_gemm_out(p); t++) {
        const struct plan_matrix *x = plan_gemm_matrix(p, t);

        if (!tensor_strides_merge(x->batch[outer], x->batch[inner], p->batch_shape[inner]))
            return false;
    }
    /* A product without elements may have any sizes. */
    return !__builtin_mul_overflow(p->batch_shape[outer], p->batch_shape[inner], &both);
}

/* Returns the stride along out's dimension i of a tensor that broadcasts to out; 0 where the tensor repeats. */
static int64_t repeated_stride(const struct tensor *t, const struct tensor *out, unsigned i)
{
    const unsigned missing = out->rank - t->rank;

    return i < missing || t->shape[i - missing] == 1 ? 0 : tensor_stride(t, i - missing);
}

static int set_bias(const struct tensor *bias, const struct tensor *out, struct plan_matrix *ret, struct error *e)
{
    if (bias->rank > out->rank)
        return mismatch(e, "in[2]", "has %u dimensions, the product has %u", bias->rank, out->rank);
    for (unsigned i = 0; i < bias->rank; i++) {
        const int64_t size = out->shape[out->rank - bias->rank + i];

        if (bias->shape[i] != 1 && bias->shape[i] != size)
            return mismatch(e, "in[2]", "dimension %u of size %lld does not broadcast to the product's %lld", i,
                            (long long)bias->shape[i], (long long)size);
    }
    ret->row = repeated_stride(bias, out, out->rank - 2);
    ret->column = repeated_stride(bias, out, out->rank - 1);
    return 0;
}

/* Sets a scale: one for each row or column of out, or one for all of out. `is_row`: a size for each row. */
static int set_scale(const struct tensor *scale, const struct tensor *out, bool is_row, struct plan_matrix *ret,
                     struct error *e)
{
    const char *key = is_row ? "in[2]" : "in[3]";

    if (scale->rank > out->rank)
        return mismatch(e, key, "has %u dimensions, the product has %u", scale->rank, out->rank);
    for (unsigned i = 0; i < scale->rank; i++) {
        const unsigned at = out->rank - scale->rank + i;
        const bool repeats = at == out->rank - (is_row ? 1 : 2);
        const int64_t size = repeats ? 1 : out->shape[at];

        if (scale->shape[i] == 1 || scale->shape[i] == size)
            continue;
        if (repeats)
            return mismatch(e, key, "dimension %u has size %lld; %s", i, (long long)scale->shape[i],
                            is_row ? "a scale of each row has the shape [rows, 1]"
                                   : "a scale of each column has the shape [columns]");
        return mismatch(e, key, "dimension %u of size %lld does not broadcast to the product's %lld", i,
                        (long long)scale->shape[i], (long long)size);
    }
    ret->row = repeated_stride(scale, out, out->rank - 2);
    ret->column = repeated_stride(scale, out, out->rank - 1);
    return 0;
}

static int set_batches(const struct op_call *call, struct plan_gemm *p, struct error *e)
{
    const struct tensor *a = call->tensors[0], *b = call->tensors[1], *out = call->tensors[plan_gemm_out(p)];
    unsigned n = 0;

    p->batch_count = 1;
    for (unsigned i = 0; i + 2 < out->rank; i++) {
        unsigned from_a = out->rank - a->rank, from_b = out->rank - b->rank;
        int64_t size = out->shape[i];

        if (set_batch(a, out, i, "in[0]", &p->a.batch[n], e) < 0 ||
            set_batch(b, out, i, "in[1]", &p->b.batch[n], e) < 0)
            return -1;
        for (unsigned x = 0; x < plan_gemm_extras(p); x++)
            p->extra[x].batch[n] = repeated_stride(call->tensors[PLAN_GEMM_BIAS + x], out, i);
        if (size > 1 && (i < from_a || a->shape[i - from_a] == 1) && (i < from_b || b->shape[i - from_b] == 1))
            return mismatch(e, "out[0]", "batch dimension %u has size %lld, but no input has it", i, (long long)size);
        p->batch_count *= (uint64_t)size;
        if (size == 1)
            continue;
        p->out.batch[n] = tensor_stride(out, i);
        p->batch_shape[n] = size;
        if (n > 0 && mergeable(p, n - 1, n)) {
            p->batch_shape[n - 1] *= size;
            p->a.batch[n - 1] = p->a.batch[n];
            p->b.batch[n - 1] = p->b.batch[n];
            for (unsigned x = 0; x < plan_gemm_extras(p); x++)
                p->extra[x].batch[n - 1] = p->extra[x].batch[n];
            p->out.batch[n - 1] = p->out.batch[n];
        } else {
            n++;
        }
    }
    p->batch_rank = n;
    return 0;
}

void op_sizes_gemm(const struct op_call *call, int64_t ret_sizes[OP_SIZES])
{
    const struct tensor *a = call->tensors[0], *b = call->tensors[1];
    const bool trans_a = call->attrs[GEMM_TRANS_A].b, trans_b = call->attrs[GEMM_TRANS_B].b;

    ret_sizes[OP_SIZE_M] = a->shape[a->rank - (trans_a ? 1 : 2)];
    ret_sizes[OP_SIZE_K] = a->shape[a->rank - (trans_a ? 2 : 1)];
    ret_sizes[OP_SIZE_N] = b->shape[b->rank - (trans_b ? 2 : 1)];
}

void op_sizes_linear(const struct op_call *call, int64_t ret_sizes[OP_SIZES])
{
    op_sizes_gemm(call, ret_sizes);
}

void op_sizes_scaled_gemm(const struct op_call *call, int64_t ret_sizes[OP_SIZES])
{
    op_sizes_gemm(call, ret_sizes);
}

_Static_assert((int)LINEAR_TRANS_A == GEMM_TRANS_A && (int)LINEAR_TRANS_B == GEMM_TRANS_B &&
                   (int)SCALED_GEMM_TRANS_A == GEMM_TRANS_A && (int)SCALED_GEMM_TRANS_B == GEMM_TRANS_B &&
                   (int)LINEAR_ALPHA == GEMM_ALPHA,
               "the rules read these attributes at the same places");

/* Sets the product of in[0] and in[1]. `p` already tells which other operands there are. */
static int set_product(const struct op_call *call, struct plan_gemm *p, struct error *e)
{
    static const char *const keys[] = {"in[0]", "in[1]", "out[0]"};
    const struct tensor *a = call->tensors[0], *b = call->tensors[1], *out = call->tensors[plan_gemm_out(p)];
    const struct tensor *const matrices[] = {a, b, out};
    const bool trans_a = call->attrs[GEMM_TRANS_A].b, trans_b = call->attrs[GEMM_TRANS_B].b;
    unsigned rank = a->rank > b->rank ? a->rank : b->rank;
    int64_t sizes[OP_SIZES];

    for (unsigned t = 0; t < 3; t++)
        if (matrices[t]->rank < 2)
            return mismatch(e, keys[t], "has %u dimensions, %s needs at least 2", matrices[t]->rank, call->op->name);
    if (out->rank != rank)
        return mismatch(e, "out[0]", "has %u dimensions, the inputs' product has %u", out->rank, rank);
    op_sizes_gemm(call, sizes);
    p->m = sizes[OP_SIZE_M];
    p->k = sizes[OP_SIZE_K];
    p->n = sizes[OP_SIZE_N];
    if (b->shape[b->rank - (trans_b ? 1 : 2)] != p->k)
        return mismatch(e, "in[1]", "its inner dimension is %lld, but in[0]'s is %lld",
                        (long long)b->shape[b->rank - (trans_b ? 1 : 2)], (long long)p->k);
    if (out->shape[rank - 2] != p->m)
        return mismatch(e, "out[0]", "has %lld rows, the product has %lld", (long long)out->shape[rank - 2],
                        (long long)p->m);
    if (out->shape[rank - 1] != p->n)
        return mismatch(e, "out[0]", "has %lld columns, the product has %lld", (long long)out->shape[rank - 1],
                        (long long)p->n);
    set_matrix(&p->a, a, trans_a);
    set_matrix(&p->b, b, trans_b);
    set_matrix(&p->out, out, false);
    p->alpha = p->has_scales ? 1 : call->attrs[GEMM_ALPHA].f;
    if (p->has_bias && set_bias(call->tensors[PLAN_GEMM_BIAS], out, &p->extra[0], e) < 0)
        return -1;
    for (unsigned x = 0; p->has_scales && x < 2; x++)
        if (set_scale(call->tensors[PLAN_GEMM_SCALE_A + x], out, x == 0, &p->extra[x], e) < 0)
            return -1;
    return set_batches(call, p, e);
}

/* Sets the precision; linear has gemm's choices, in the same order. */
static void set_precision(struct plan_gemm *p, unsigned choice)
{
    _Static_assert((int)GEMM_PRECISION_HIGHEST == (int)LINEAR_PRECISION_HIGHEST &&
                       (int)GEMM_PRECISION_MEDIUM == (int)LINEAR_PRECISION_MEDIUM,
                   "the same choices");
    p->high_precision_only = choice != GEMM_PRECISION_MEDIUM;
    p->in_pieces = choice != GEMM_PRECISION_HIGHEST;
}

int op_rule_gemm(const struct op_call *call, struct plan *ret_plan, struct error *e)
{
    struct plan_gemm *p = &ret_plan->gemm;

    ret_plan->kind = PLAN_GEMM;
    memset(p, 0, sizeof(*p));
    p->beta = call->attrs[GEMM_BETA].f;
    set_precision(p, call->attrs[GEMM_PRECISION].choice);
    return set_product(call, p, e);
}

int op_rule_linear(const struct op_call *call, struct plan *ret_plan, struct error *e)
{
    static const enum plan_activation activations[] = {[LINEAR_ACTIVATION_NONE] = PLAN_NONE,
                                                       [LINEAR_ACTIVATION_RELU] = PLAN_RELU,
                                                       [LINEAR_ACTIVATION_GELU] = PLAN_GELU,
                                                       [LINEAR_ACTIVATION_GELU_TANH] = PLAN_GELU_TANH};
    struct plan_gemm *p = &ret_plan->gemm;

    ret_plan->kind = PLAN_GEMM;
    memset(p, 0, sizeof(*p));
    p->has_bias = true;
    p->activation = activations[call->attrs[LINEAR_ACTIVATION].choice];
    set_precision(p, call->attrs[LINEAR_PRECISION].choice);
    return set_product(call, p, e);
}

int op_rule_scaled_gemm(const struct op_call *call, struct plan *ret_plan, struct error *e)
{
    struct plan_gemm *p = &ret_plan->gemm;

    ret_plan->kind = PLAN_GEMM;
    memset(p, 0, sizeof(*p));
    p->has_scales = true;
    p->b_dtype = call->tensors[PLAN_GEMM_B]->dtype;
    p->all_in_f32 = call->attrs[SCALED_GEMM_PRECISION].choice == SCALED_GEMM_PRECISION_HIGHEST;
    p->fast_sums = call->attrs[SCALED_GEMM_PRECISION].choice == SCALED_GEMM_PRECISION_MEDIUM;
    return set_product(call, p, e);
}

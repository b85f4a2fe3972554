/* Ops: the table, and the shape rules. */
#include "core/op.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/generated/op_table.h"

const struct op *op_find(const char *name, size_t length)
{
    for (unsigned i = 0; i < OP_COUNT; i++)
        if (strlen(op_table[i].name) == length && !memcmp(op_table[i].name, name, length))
            return &op_table[i];
    return NULL;
}

const struct op *op_get(enum op_id id)
{
    return &op_table[id];
}

/* "in[0]" or "out[0]" for the i-th tensor of the call. */
static const char *tensor_key(const struct op *op, unsigned i, char into[16])
{
    if (i < op->n_inputs)
        snprintf(into, 16, "in[%u]", i);
    else
        snprintf(into, 16, "out[%u]", i - op->n_inputs);
    return into;
}

/* Returns a DTYPE_BIT set: the dtypes that outputs may have with inputs of `dtype`. */
static unsigned op_out_dtypes(const struct op *op, enum dtype dtype)
{
    const unsigned declared = op->out_dtypes ? op->out_dtypes[dtype] : 0;

    return declared ? declared : DTYPE_BIT(dtype);
}

/* "bf16 or f32" */
static const char *set_names(unsigned set, char into[160])
{
    int n = 0;

    into[0] = '\0';
#define X(NAME, name, value, size)                                                                                     \
    if (set & DTYPE_BIT(DTYPE_##NAME) && n < 160)                                                                      \
        n += snprintf(into + n, (size_t)(160 - n), "%s" name, n ? " or " : "");
    KOPS_DTYPES(X)
#undef X
    return into;
}

/* "out[0] is f64; beside inputs of bf16 it may be bf16 or f32" */
static int refuse_output(const struct op *op, unsigned i, enum dtype given, enum dtype inputs, struct error *e)
{
    char key[16], names[160];

    error_set(e, ERROR_DTYPE_MISMATCH, "%s is %s; beside inputs of %s it may be %s", tensor_key(op, i, key),
              dtype_name(given), dtype_name(inputs), set_names(op_out_dtypes(op, inputs), names));
    return error_detail_text(e, "key", key);
}

/* Inputs with dtypes of their own. */
static int check_own_dtypes(const struct op_call *call, struct error *e)
{
    const struct op *op = call->op;
    char key[16], names[160];

    for (unsigned i = 1; i < op->n_inputs; i++) {
        if (!op->in_dtypes[i] || op->in_dtypes[i] & DTYPE_BIT(call->tensors[i]->dtype))
            continue;
        error_set(e, ERROR_DTYPE_MISMATCH, "%s is %s; %s's %s is %s", tensor_key(op, i, key),
                  dtype_name(call->tensors[i]->dtype), op->name, op->inputs[i], set_names(op->in_dtypes[i], names));
        return error_detail_text(e, "key", key);
    }
    return 0;
}

/* The op takes the inputs' dtype, which is one but for those with their own, and gives that of the outputs, which is
 * one, too. */
static int check_dtypes(const struct op_call *call, struct error *e)
{
    const struct op *op = call->op;
    const enum dtype dtype = call->tensors[0]->dtype, of_output = call->tensors[op->n_inputs]->dtype;
    char key[16];

    if (!(op->dtypes & DTYPE_BIT(dtype))) {
        error_set(e, ERROR_UNKNOWN_DTYPE, "%s does not take %s", op->name, dtype_name(dtype));
        return error_detail_text(e, "key", "in[0].dtype");
    }
    for (unsigned i = op->n_inputs; op->out_dtypes && i < op->n_inputs + op->n_outputs; i++)
        if (!(op_out_dtypes(op, dtype) & DTYPE_BIT(call->tensors[i]->dtype)))
            return refuse_output(op, i, call->tensors[i]->dtype, dtype, e);
    if (check_own_dtypes(call, e) < 0)
        return -1;
    for (unsigned i = 1; i < op->n_inputs + op->n_outputs; i++) {
        const unsigned first = op->out_dtypes && i >= op->n_inputs ? op->n_inputs : 0;

        if (i < op->n_inputs && op->in_dtypes[i])
            continue;
        if (call->tensors[i]->dtype != (first ? of_output : dtype)) {
            error_set(e, ERROR_DTYPE_MISMATCH, "%s is %s, but %s is %s; convert one of them first",
                      tensor_key(op, i, key), dtype_name(call->tensors[i]->dtype), first ? "out[0]" : "in[0]",
                      dtype_name(call->tensors[first]->dtype));
            return error_detail_text(e, "key", key);
        }
    }
    return 0;
}

int op_plan(const struct op_call *call, struct plan *ret_plan, struct error *e)
{
    const struct op *op = call->op;
    char key[16];

    if (check_dtypes(call, e) < 0)
        return -1;
    for (unsigned i = 0; i < op->n_outputs; i++)
        if (tensor_overlaps_itself(call->tensors[op->n_inputs + i])) {
            error_set(e, ERROR_OVERLAP, "%s: its strides make different indices share an element",
                      tensor_key(op, op->n_inputs + i, key));
            return error_detail_text(e, "key", key);
        }
    ret_plan->dtype = call->tensors[0]->dtype;
    ret_plan->out_dtype = call->tensors[op->n_inputs]->dtype;
    return op->rule(call, ret_plan, e);
}

bool op_reads_output(const struct op_call *call, int in_place)
{
    if (in_place >= 0)
        return true;
    return call->op->id == OP_GEMM && call->attrs[GEMM_BETA].f != 0;
}

int64_t op_bytes(const struct op_call *call)
{
    int64_t bytes = 0, of_tensor;

    for (unsigned i = 0; i < call->op->n_inputs + call->op->n_outputs; i++)
        if (__builtin_mul_overflow(call->tensors[i]->count, dtype_size(call->tensors[i]->dtype), &of_tensor) ||
            __builtin_add_overflow(bytes, of_tensor, &bytes))
            return -1;
    return bytes;
}

int64_t op_operations(const struct op_call *call)
{
    const struct op *op = call->op;
    int64_t sizes[OP_SIZES] = {0}, n;

    if (!op->operations.factor || !dtype_is_float(call->tensors[0]->dtype) ||
        __builtin_mul_overflow(call->tensors[op->n_inputs]->count, op->operations.factor, &n))
        return -1;
    if (op->sizes)
        op->sizes(call, sizes);
    for (unsigned i = 0; i < OP_SIZES; i++)
        if (op->operations.sizes & 1U << i && __builtin_mul_overflow(n, sizes[i], &n))
            return -1;
    return n;
}

/* ---- "elementwise": inputs broadcast to the output's shape, as in NumPy ---- */

static int shape_error(struct error *e, const char *key, const struct tensor *t, const char *why)
{
    char shape[TENSOR_MAX_RANK * 21 + 4];
    int n = snprintf(shape, sizeof(shape), "[");

    for (unsigned i = 0; i < t->rank; i++)
        n += snprintf(shape + n, sizeof(shape) - (size_t)n, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    snprintf(shape + n, sizeof(shape) - (size_t)n, "]");
    error_set(e, ERROR_SHAPE_MISMATCH, "%s has shape %s: %s", key, shape, why);
    return error_detail_text(e, "key", key);
}

/* The shape that all inputs broadcast to. */
static int broadcast(const struct op_call *call, struct tensor *ret, struct error *e)
{
    ret->rank = 0;
    for (unsigned t = 0; t < call->op->n_inputs; t++)
        if (call->tensors[t]->rank > ret->rank)
            ret->rank = call->tensors[t]->rank;
    for (unsigned i = 0; i < ret->rank; i++)
        ret->shape[i] = 1;
    for (unsigned t = 0; t < call->op->n_inputs; t++) {
        const struct tensor *in = call->tensors[t];

        for (unsigned i = 0; i < in->rank; i++) {
            int64_t *into = &ret->shape[ret->rank - in->rank + i];
            char key[16];

            if (in->shape[i] == 1 || in->shape[i] == *into)
                continue;
            if (*into == 1) {
                *into = in->shape[i];
                continue;
            }
            snprintf(key, sizeof(key), "in[%u]", t);
            return shape_error(e, key, in, "it does not broadcast with the other input");
        }
    }
    return 0;
}

/* Whether dimension `outer` and the next inner one `inner` walk memory like one dimension, in every operand. */
static bool mergeable(const struct plan_elementwise *p, unsigned operands, unsigned outer, unsigned inner)
{
    for (unsigned t = 0; t < operands; t++)
        if (!tensor_strides_merge(p->strides[t][outer], p->strides[t][inner], p->shape[inner]))
            return false;
    return true;
}

static void swap_dimensions(struct plan_elementwise *p, unsigned operands, unsigned a, unsigned b)
{
    int64_t x = p->shape[a];

    p->shape[a] = p->shape[b];
    p->shape[b] = x;
    for (unsigned t = 0; t < operands; t++) {
        x = p->strides[t][a];
        p->strides[t][a] = p->strides[t][b];
        p->strides[t][b] = x;
    }
}

/* Normal form of plan.h: order by out's strides, then merge. */
static void normalise(struct plan_elementwise *p, unsigned operands)
{
    const unsigned out = operands - 1;
    unsigned n = 0;

    for (unsigned i = 1; i < p->rank; i++)
        for (unsigned j = i; j > 0 && p->strides[out][j - 1] < p->strides[out][j]; j--)
            swap_dimensions(p, operands, j - 1, j);
    for (unsigned i = 1; i < p->rank; i++) {
        if (mergeable(p, operands, n, i)) {
            p->shape[n] *= p->shape[i];
        } else {
            n++;
            p->shape[n] = p->shape[i];
        }
        for (unsigned t = 0; t < operands; t++)
            p->strides[t][n] = p->strides[t][i];
    }
    p->rank = n + 1;
    p->contiguous = p->rank == 1;
    for (unsigned t = 0; t < operands; t++)
        if (p->strides[t][0] != 1)
            p->contiguous = false;
}

int op_rule_elementwise(const struct op_call *call, struct plan *ret_plan, struct error *e)
{
    const unsigned operands = call->op->n_inputs + 1;
    const struct tensor *out = call->tensors[call->op->n_inputs];
    struct plan_elementwise *p = &ret_plan->elementwise;
    struct tensor shape;

    if (broadcast(call, &shape, e) < 0)
        return -1;
    if (out->rank != shape.rank || memcmp(out->shape, shape.shape, shape.rank * sizeof(shape.shape[0])) != 0)
        return shape_error(e, "out[0]", out, "it must have the shape that the inputs broadcast to");
    ret_plan->kind = PLAN_ELEMENTWISE;
    memset(p, 0, sizeof(*p));
    p->count = out->count;
    for (unsigned i = 0; i < shape.rank && p->count; i++) {
        if (shape.shape[i] == 1)
            continue;
        p->shape[p->rank] = shape.shape[i];
        for (unsigned t = 0; t < operands; t++) {
            const struct tensor *in = call->tensors[t];
            unsigned missing = shape.rank - in->rank;
            bool repeated = i < missing || in->shape[i - missing] == 1;

            p->strides[t][p->rank] = repeated ? 0 : tensor_stride(in, i - missing);
        }
        p->rank++;
    }
    if (p->rank == 0) {
        p->rank = 1;
        p->shape[0] = (int64_t)p->count;
        for (unsigned t = 0; t < operands; t++)
            p->strides[t][0] = 1;
    }
    normalise(p, operands);
    return 0;
}

/* ---- "gemm" (matrix products over the last two dimensions; leading ones broadcast as batches), "linear" (gemm with a
 * bias and an activation), and "scaled_gemm" (with a scale for each input) ---- */

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

static bool batches_mergeable(const struct plan_gemm *p, unsigned outer, unsigned inner)
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
        if (n > 0 && batches_mergeable(p, n - 1, n)) {
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

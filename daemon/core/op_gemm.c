/* Shape rule "gemm": matrix products over the last two dimensions, leading ones broadcast as batches. */
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
    m->row = t->strides[t->rank - (transposed ? 1 : 2)];
    m->column = t->strides[t->rank - (transposed ? 2 : 1)];
}

/* Batch dimension i of out, counted from the left; operands with fewer dimensions repeat. */
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
    *ret_stride = t->strides[i - missing];
    return 0;
}

static bool mergeable(const struct plan_gemm *p, unsigned outer, unsigned inner)
{
    const struct plan_matrix *all[] = {&p->a, &p->b, &p->out};

    for (unsigned t = 0; t < 3; t++)
        if (all[t]->batch[outer] != all[t]->batch[inner] * p->batch_shape[inner])
            return false;
    return true;
}

static int set_batches(const struct op_call *call, struct plan_gemm *p, struct error *e)
{
    const struct tensor *a = call->tensors[0], *b = call->tensors[1], *out = call->tensors[2];
    unsigned n = 0;

    p->batch_count = 1;
    for (unsigned i = 0; i + 2 < out->rank; i++) {
        unsigned from_a = out->rank - a->rank, from_b = out->rank - b->rank;
        int64_t size = out->shape[i];

        if (set_batch(a, out, i, "in[0]", &p->a.batch[n], e) < 0 ||
            set_batch(b, out, i, "in[1]", &p->b.batch[n], e) < 0)
            return -1;
        if (size > 1 && (i < from_a || a->shape[i - from_a] == 1) && (i < from_b || b->shape[i - from_b] == 1))
            return mismatch(e, "out[0]", "batch dimension %u has size %lld, but no input has it", i, (long long)size);
        p->batch_count *= (uint64_t)size;
        if (size == 1)
            continue;
        p->out.batch[n] = out->strides[i];
        p->batch_shape[n] = size;
        if (n > 0 && mergeable(p, n - 1, n)) {
            p->batch_shape[n - 1] *= size;
            p->a.batch[n - 1] = p->a.batch[n];
            p->b.batch[n - 1] = p->b.batch[n];
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

int op_rule_gemm(const struct op_call *call, struct plan *ret_plan, struct error *e)
{
    static const char *const keys[] = {"in[0]", "in[1]", "out[0]"};
    const struct tensor *a = call->tensors[0], *b = call->tensors[1], *out = call->tensors[2];
    const bool trans_a = call->attrs[GEMM_TRANS_A].b, trans_b = call->attrs[GEMM_TRANS_B].b;
    struct plan_gemm *p = &ret_plan->gemm;
    unsigned rank = a->rank > b->rank ? a->rank : b->rank;
    int64_t sizes[OP_SIZES];

    for (unsigned t = 0; t < 3; t++)
        if (call->tensors[t]->rank < 2)
            return mismatch(e, keys[t], "has %u dimensions, gemm needs at least 2", call->tensors[t]->rank);
    if (out->rank != rank)
        return mismatch(e, "out[0]", "has %u dimensions, the inputs' product has %u", out->rank, rank);
    ret_plan->kind = PLAN_GEMM;
    memset(p, 0, sizeof(*p));
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
    p->alpha = call->attrs[GEMM_ALPHA].f;
    p->beta = call->attrs[GEMM_BETA].f;
    p->high_precision_only = call->attrs[GEMM_PRECISION].choice != GEMM_PRECISION_MEDIUM;
    p->in_pieces = call->attrs[GEMM_PRECISION].choice != GEMM_PRECISION_HIGHEST;
    return set_batches(call, p, e);
}

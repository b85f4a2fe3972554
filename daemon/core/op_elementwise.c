/* Shape rule "elementwise": inputs broadcast to the output's shape, as in NumPy. */
#include <stdio.h>
#include <string.h>

#include "core/op.h"

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

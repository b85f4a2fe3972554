#include "core/op.h"

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

int op_plan(const struct op_call *call, struct plan *ret_plan, struct error *e)
{
    const struct op *op = call->op;
    enum dtype dtype = call->tensors[0]->dtype;
    char key[16];

    if (!(op->dtypes & DTYPE_BIT(dtype))) {
        error_set(e, ERROR_UNKNOWN_DTYPE, "%s does not take %s", op->name, dtype_name(dtype));
        return error_detail_text(e, "key", "in[0].dtype");
    }
    for (unsigned i = 1; i < op->n_inputs + op->n_outputs; i++)
        if (call->tensors[i]->dtype != dtype) {
            error_set(e, ERROR_DTYPE_MISMATCH, "%s is %s, but in[0] is %s; convert one of them first",
                      tensor_key(op, i, key), dtype_name(call->tensors[i]->dtype), dtype_name(dtype));
            return error_detail_text(e, "key", key);
        }
    for (unsigned i = 0; i < op->n_outputs; i++)
        if (tensor_overlaps_itself(call->tensors[op->n_inputs + i])) {
            error_set(e, ERROR_OVERLAP, "%s: its strides make different indices share an element",
                      tensor_key(op, op->n_inputs + i, key));
            return error_detail_text(e, "key", key);
        }
    ret_plan->dtype = dtype;
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

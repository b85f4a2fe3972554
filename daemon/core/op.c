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

/* Overlap: outputs that share elements with other tensors of one execution. */
#include "core/step.h"

#include <stdio.h>

#include "core/kernel.h"

const char *operand_key(const struct op *op, const struct kernel_signature *kernel, unsigned o, char into[16])
{
    if (kernel)
        snprintf(into, 16, "args[%u]", kernel->operands[o]->index);
    else if (o < op->n_inputs)
        snprintf(into, 16, "in[%u]", o);
    else
        snprintf(into, 16, "out[%u]", o - op->n_inputs);
    return into;
}

static int refuse(const struct overlap_call *call, unsigned out, unsigned other, struct error *e)
{
    char out_key[16], other_key[16];

    error_set(e, ERROR_OVERLAP, "%s shares memory with %s; give it memory of its own%s",
              operand_key(call->op, call->kernel, out, out_key), operand_key(call->op, call->kernel, other, other_key),
              call->kernel ? ", or declare the kernel with `alias`" : "");
    return error_detail_text(e, "key", call->kernel ? out_key : "out");
}

int overlap_check(const struct overlap_call *call, int8_t *ret_in_place, struct error *e)
{
    const unsigned n_inputs = call->op->n_inputs, n = n_inputs + call->op->n_outputs;

    *ret_in_place = -1;
    if (call->kernel && call->kernel->alias)
        return 0;
    for (unsigned o = n_inputs; o < n; o++)
        for (unsigned j = 0; j < o; j++) {
            const struct tensor *out = call->tensors[o], *other = call->tensors[j];

            if (!out || !other || !call->same_memory(call->context, o, j) ||
                !tensor_share_elements_within(out, other, call->budget))
                continue;
            if (j >= n_inputs || call->kind != PLAN_ELEMENTWISE || !tensor_same_view(out, other))
                return refuse(call, o, j, e);
            *ret_in_place = (int8_t)j;
        }
    return 0;
}

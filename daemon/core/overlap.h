/* Outputs that share elements with other tensors of one execution are refused, except in exact in-place use. */
#ifndef KOPS_CORE_OVERLAP_H
#define KOPS_CORE_OVERLAP_H

#include "core/kernel.h"

/* An execution: its tensors are in the order of operands, NULL for a null pointer. */
struct overlap_call {
    const struct op *op;
    const struct kernel_signature *kernel; /* NULL: an op */
    enum plan_kind kind;
    const struct tensor *const *tensors;
    bool (*same_memory)(const void *context, unsigned a, unsigned b); /* tells whether two operands lie in one memory */
    const void *context;
    unsigned *budget; /* steps left for the search, see tensor_share_elements_within() */
};

/* Checks an execution. *ret_in_place: the input that an output is exactly; -1: none. Error: overlap, with the operand's
 * key. */
int overlap_check(const struct overlap_call *call, int8_t *ret_in_place, struct error *e);

/* Returns the key of operand `o` in errors: "in[0]", "out[0]"; for a kernel "args[0]". */
const char *operand_key(const struct op *op, const struct kernel_signature *kernel, unsigned o, char into[16]);

#endif

/* A step: an op on its tensors. It is the same struct from the decoder of requests to the device. It has no pointer, so
 * it can be handed to another process. A plain value. */
#ifndef KOPS_CORE_STEP_H
#define KOPS_CORE_STEP_H

#include <stdint.h>
#include <string.h>

#include "core/op.h"
#include "core/plan.h"

enum { STEP_VARIANT_BYTES = 24 };

/* Place of a tensor: element (0, …, 0) is `offset` bytes into the memory. */
struct step_operand {
    uint32_t memory; /* id of the memory, see backend/memory.h; 0: none, only where the tensor is empty */
    uint64_t offset;
    uint64_t extent; /* bytes from `offset` to the end of the furthest element */
};

struct step {
    /* Set by the server before submit(). */
    uint16_t op; /* enum op_id; OP_COUNT: a user's kernel */
    uint8_t n_inputs, n_outputs;
    int8_t in_place;                     /* the input that output 0 is exactly; -1: none */
    char variant[STEP_VARIANT_BYTES];    /* forced by the client; "": the device chooses */
    uint16_t tensors[STEP_MAX_OPERANDS]; /* indices of tensors in the command list: inputs, then outputs */
    union op_attr_value attrs[OP_MAX_ATTRS];
    struct plan plan;
    struct step_operand operands[STEP_MAX_OPERANDS];

    /* Set by the backend before done(): the variant that ran; "": none. */
    char variant_used[STEP_VARIANT_BYTES];
};

static inline unsigned step_operands(const struct step *s)
{
    return (unsigned)s->n_inputs + s->n_outputs;
}

/* Returns the dtype of a built-in op's operand. */
static inline enum dtype step_dtype(const struct step *s, unsigned operand)
{
    return plan_dtype(&s->plan, s->n_inputs, operand);
}

/* Returns the op's name; "kernel" for a user's kernel. */
static inline const char *step_op_name(const struct step *s)
{
    return s->op < OP_COUNT ? op_get((enum op_id)s->op)->name : "kernel";
}

static inline void step_set_op(struct step *s, const struct op *op)
{
    s->op = (uint16_t)op->id;
    s->n_inputs = (uint8_t)op->n_inputs;
    s->n_outputs = (uint8_t)op->n_outputs;
}

/* Returns the forced variant, or NULL. */
static inline const char *step_variant(const struct step *s)
{
    return s->variant[0] ? s->variant : NULL;
}

/* Copies a variant's name, which is shorter than STEP_VARIANT_BYTES. */
static inline void step_copy_variant(char into[STEP_VARIANT_BYTES], const char *name)
{
    size_t length;

    name = name ? name : "";
    length = strnlen(name, STEP_VARIANT_BYTES - 1);
    memmove(into, name, length);
    into[length] = '\0';
}

/* ---- overlap: outputs that share elements with other tensors are refused, except in exact in-place use ---- */

struct kernel_signature;

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

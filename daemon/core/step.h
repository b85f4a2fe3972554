/* A step: one op on its tensors. It is the same struct from the decoder of requests to the device, and flat: it has no
 * pointer, so it can be handed to another process. A plain value. */
#ifndef KOPS_CORE_STEP_H
#define KOPS_CORE_STEP_H

#include <stdint.h>
#include <string.h>

#include "core/op.h"
#include "core/plan.h"

enum { STEP_VARIANT_BYTES = 24 };

/* Where one tensor lies: element (0, …, 0) is `offset` bytes into the memory. */
struct step_operand {
    uint32_t memory; /* its id, see backend/memory_ids.h; 0: none, only where the tensor is empty */
    uint64_t offset;
    uint64_t extent; /* bytes from there to the end of the furthest element */
};

struct step {
    /* Set by the server before submit(). */
    uint16_t op; /* enum op_id; OP_COUNT: a kernel of a user */
    uint8_t n_inputs, n_outputs;
    int8_t in_place;                     /* the input that output 0 is exactly; -1: none */
    char variant[STEP_VARIANT_BYTES];    /* forced by the client; "": the device chooses */
    uint16_t tensors[STEP_MAX_OPERANDS]; /* inputs, then outputs: which tensors of the command list */
    union op_attr_value attrs[OP_MAX_ATTRS];
    struct plan plan;
    struct step_operand operands[STEP_MAX_OPERANDS]; /* where the tensors lie */

    /* Set by the backend before done(): the variant that ran; "": none. */
    char variant_used[STEP_VARIANT_BYTES];
};

static inline unsigned step_operands(const struct step *s)
{
    return (unsigned)s->n_inputs + s->n_outputs;
}

/* The dtype of a built-in op's operand. */
static inline enum dtype step_dtype(const struct step *s, unsigned operand)
{
    return plan_dtype(&s->plan, s->n_inputs, operand);
}

/* The op's name; of a user's kernel "kernel". */
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

/* The forced variant, or NULL. */
static inline const char *step_variant(const struct step *s)
{
    return s->variant[0] ? s->variant : NULL;
}

/* Names of variants are shorter than STEP_VARIANT_BYTES. */
static inline void step_copy_variant(char into[STEP_VARIANT_BYTES], const char *name)
{
    size_t length;

    name = name ? name : "";
    length = strnlen(name, STEP_VARIANT_BYTES - 1);
    memmove(into, name, length);
    into[length] = '\0';
}

#endif

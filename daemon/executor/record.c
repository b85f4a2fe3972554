#include "executor/record.h"

#include <stddef.h>
#include <string.h>

/* The part of a step that is always there. */
struct packed {
    uint32_t bytes, plan_bytes;
    uint16_t op;
    uint8_t n_inputs, n_outputs;
    int8_t in_place;
    uint8_t kind;
    uint32_t dtype;
    char variant[STEP_VARIANT_BYTES];
    union op_attr_value attrs[OP_MAX_ATTRS];
};

/* Where the members of a plan's union lie, all at one place. */
enum { PLAN_AT = offsetof(struct plan, elementwise) };

static uint32_t plan_bytes(enum plan_kind kind)
{
    switch (kind) {
    case PLAN_ELEMENTWISE:
        return sizeof(struct plan_elementwise);
    case PLAN_GEMM:
        return sizeof(struct plan_gemm);
    case PLAN_KERNEL:
        return sizeof(struct plan_kernel);
    }
    return 0;
}

uint32_t step_packed_bytes(const struct step *step)
{
    const size_t bytes =
        sizeof(struct packed) + plan_bytes(step->plan.kind) + step_operands(step) * sizeof(struct step_operand);

    return ((uint32_t)bytes + 7) & ~7U;
}

uint32_t step_pack(const struct step *step, const uint32_t *memories, unsigned char *into)
{
    const unsigned operands = step_operands(step);
    struct packed head = {.bytes = step_packed_bytes(step),
                          .plan_bytes = plan_bytes(step->plan.kind),
                          .op = step->op,
                          .n_inputs = step->n_inputs,
                          .n_outputs = step->n_outputs,
                          .in_place = step->in_place,
                          .kind = (uint8_t)step->plan.kind,
                          .dtype = (uint32_t)step->plan.dtype};
    unsigned char *at = into + sizeof(head);

    memcpy(head.variant, step->variant, sizeof(head.variant));
    memcpy(head.attrs, step->attrs, sizeof(head.attrs));
    memcpy(at, (const unsigned char *)&step->plan + PLAN_AT, head.plan_bytes);
    at += head.plan_bytes;
    for (unsigned i = 0; i < operands; i++) {
        struct step_operand operand = step->operands[i];

        operand.memory = memories[i];
        memcpy(at, &operand, sizeof(operand));
        at += sizeof(operand);
    }
    memcpy(into, &head, sizeof(head));
    return head.bytes;
}

uint32_t step_unpack(const unsigned char *from, uint32_t size, struct step *ret_step)
{
    const unsigned char *at = from + sizeof(struct packed);
    struct packed head;
    uint32_t operands;

    if (size < sizeof(head))
        return 0;
    memcpy(&head, from, sizeof(head));
    operands = (uint32_t)head.n_inputs + head.n_outputs;
    if (head.bytes > size || operands > STEP_MAX_OPERANDS || head.plan_bytes != plan_bytes((enum plan_kind)head.kind) ||
        sizeof(head) + head.plan_bytes + operands * sizeof(struct step_operand) > head.bytes)
        return 0;
    ret_step->op = head.op;
    ret_step->n_inputs = head.n_inputs;
    ret_step->n_outputs = head.n_outputs;
    ret_step->in_place = head.in_place;
    memcpy(ret_step->variant, head.variant, sizeof(head.variant));
    memset(ret_step->tensors, 0, sizeof(ret_step->tensors));
    memcpy(ret_step->attrs, head.attrs, sizeof(head.attrs));
    ret_step->plan.kind = (enum plan_kind)head.kind;
    ret_step->plan.dtype = (enum dtype)head.dtype;
    memcpy((unsigned char *)&ret_step->plan + PLAN_AT, at, head.plan_bytes);
    memcpy(ret_step->operands, at + head.plan_bytes, operands * sizeof(struct step_operand));
    ret_step->variant_used[0] = '\0';
    return head.bytes;
}

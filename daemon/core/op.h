/* The ops, each declared once in proto/ops/<name>.json; this is their form in C. */
#ifndef KOPS_CORE_OP_H
#define KOPS_CORE_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/plan.h"
#include "core/tensor.h"
#include "proto/generated/op_ids.h"
#include "util/error.h"

enum op_attr_type { OP_ATTR_BOOL, OP_ATTR_FLOAT, OP_ATTR_INT, OP_ATTR_CHOICE };

union op_attr_value {
    bool b;
    double f;
    int64_t i;
    unsigned choice;
};

struct op_attr {
    const char *name;
    enum op_attr_type type;
    union op_attr_value fallback; /* the declared default */
    const char *const *choices;   /* NULL-terminated, for OP_ATTR_CHOICE */
    const char *doc;
};

struct op_call;

/* Checks shapes, fills the plan. Tensors are measured, and their dtypes checked already. */
typedef int op_rule(const struct op_call *call, struct plan *ret_plan, struct error *e);

/* The rule's own sizes of a call, whose tensors have ranks that the rule takes. */
typedef void op_sizes(const struct op_call *call, int64_t ret_sizes[OP_SIZES]);

struct op {
    enum op_id id; /* OP_COUNT: a user kernel */
    uint64_t code; /* number that tells users' kernels of equal name apart */
    const char *name, *summary, *doc;
    const char *inputs[OP_MAX_INPUTS], *outputs[OP_MAX_OUTPUTS];
    unsigned n_inputs, n_outputs;
    unsigned dtypes; /* DTYPE_BIT set of the inputs' dtypes */
    /* DTYPE_BIT sets of inputs with a dtype of their own; 0: the first input's dtype. */
    unsigned in_dtypes[OP_MAX_INPUTS];
    const unsigned *out_dtypes; /* DTYPE_BIT sets of the outputs, by the inputs' dtype; NULL, or 0 there: the inputs' */
    const struct op_attr *attrs;
    unsigned n_attrs;
    op_rule *rule;
    op_sizes *sizes; /* NULL: the rule has none */
    struct {
        unsigned factor; /* 0: no operations, or their number is unknown (a user's kernel) */
        unsigned sizes;  /* a bit for each enum op_size */
    } operations;        /* floating-point operations for each element of output 0: the factor times these sizes */
};

/* A call of an op: its tensors (inputs first, then outputs) and attributes (declared order). */
struct op_call {
    const struct op *op;
    const struct tensor *tensors[STEP_MAX_OPERANDS]; /* tensors of the body that has the call */
    union op_attr_value attrs[OP_MAX_ATTRS];
};

/* Finds an op; NULL when there is none. */
const struct op *op_find(const char *name, size_t length);
const struct op *op_get(enum op_id id);

/* Checks that the op takes the dtypes, and applies its shape rule. Errors name the tensor. */
int op_plan(const struct op_call *call, struct plan *ret_plan, struct error *e);

/* True when an execution reads its outputs, given that output 0 is exactly input `in_place` (or -1). */
bool op_reads_output(const struct op_call *call, int in_place);

/* Returns the bytes of the elements of every tensor, each tensor once; -1: more than INT64_MAX. */
int64_t op_bytes(const struct op_call *call);
/* Returns the floating-point operations of one execution of a call that op_plan() has taken; -1: there are none, or
 * their number is not known, or more than INT64_MAX. */
int64_t op_operations(const struct op_call *call);

op_rule op_rule_elementwise, op_rule_gemm, op_rule_linear, op_rule_scaled_gemm;
op_sizes op_sizes_gemm, op_sizes_linear, op_sizes_scaled_gemm;

#endif

/* Integer expressions over the arguments of a kernel's call: `ceil_div(n, 256)`, `a.shape[0] * 4`.
 *
 *     sum     = product { ("+" | "-") product }
 *     product = unary { ("*" | "/" | "//" | "%") unary }
 *     unary   = "-" unary | "(" sum ")" | number | name | function "(" sum { "," sum } ")" | tensor "." property
 *     property = "numel" [ "()" ] | "rank" [ "()" ] | "shape" "[" integer "]" | "size" "(" integer ")"
 *
 * Functions: ceil_div(a, b), min(a, …), max(a, …), next_pow2(a). Numbers are decimal, also with leading zeros, or
 * hexadecimal after 0x; the name `multiprocessors`
 * is the device's, unless a parameter is called so. Arithmetic is that of 64-bit integers and never wraps: a result
 * that does not fit is an error, as is a division by zero. `/` and `//` are the same: they round towards minus
 * infinity, ceil_div() rounds towards plus infinity, and a % b has the sign of b. next_pow2() of anything below 1 is 1.
 *
 * An expression is parsed once, into a postfix program with its constants folded, and is immutable from then on: any
 * thread may evaluate it. Evaluating allocates nothing. */
#ifndef KOPS_CORE_EXPR_H
#define KOPS_CORE_EXPR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/tensor.h"
#include "proto/generated/kernels.h"
#include "util/error.h"

enum {
    EXPR_MAX_TEXT = KERNELS_EXPRESSION_TEXT_MAX,
    EXPR_MAX_OPS = KERNELS_EXPRESSION_OPERATIONS_MAX,
    EXPR_MAX_NAMES = KERNELS_PARAMS_MAX,
};

enum expr_kind { EXPR_INTEGER, EXPR_TENSOR, EXPR_UNUSABLE /* a known name that is no integer */ };

struct expr_name {
    const char *name; /* a C identifier */
    enum expr_kind kind;
    unsigned index; /* index in expr_inputs of the integer (below EXPR_MAX_NAMES) or the tensor (below 256) */
    int rank;       /* rank of a tensor; -1 when it is not known before the call */
};

/* The names of an expression. Borrowed for the parse. */
struct expr_scope {
    const struct expr_name *names;
    unsigned n;
};

/* The values of names in one call. */
struct expr_inputs {
    const int64_t *integers;
    const struct tensor *const *tensors; /* NULL for a null pointer, whose shape is an error */
    int64_t multiprocessors;
};

struct expr;

/* Parses an expression. Errors: invalid_argument (syntax, an unknown name, a constant that does not fit),
 * limit_exceeded (longer than EXPR_MAX_TEXT, or more than EXPR_MAX_OPS operations), with the detail `position`: the
 * character, from 1. */
int expr_parse(const char *text, size_t length, const struct expr_scope *scope, struct expr **ret, struct error *e);

/* Makes an expression that is always that number. Its text is the number. */
int expr_constant(int64_t value, struct expr **ret, struct error *e);

/* NULL is allowed; returns NULL. */
struct expr *expr_free(struct expr *x);

/* Evaluates an expression. Errors: out_of_range (a result does not fit 64 bits), invalid_argument (division by zero, a
 * dimension that the tensor does not have, a null pointer). The message says where in the expression. */
int expr_evaluate(const struct expr *x, const struct expr_inputs *inputs, int64_t *ret, struct error *e);

/* Returns the expression's text, for messages: characters that are not printable ASCII are '?'. */
const char *expr_text(const struct expr *x);

/* Tells whether the expression has the same value in every call. */
bool expr_is_constant(const struct expr *x);

/* Returns the set of integers that the expression reads: bit i for index i. */
uint32_t expr_integers_used(const struct expr *x);

/* ---- the postfix program: the compiled part of the Python package reads it, too ---- */

/* Operations of a postfix program. The first ones push a value. */
enum expr_code {
    EXPR_NUMBER,
    EXPR_LOAD_INTEGER,
    EXPR_LOAD_MULTIPROCESSORS,
    EXPR_LOAD_NUMEL,
    EXPR_LOAD_RANK,
    EXPR_LOAD_SIZE, /* size of dimension `value`, from the end when negative */
    EXPR_NEGATE,
    EXPR_NEXT_POW2,
    EXPR_ADD,
    EXPR_SUB,
    EXPR_MUL,
    EXPR_DIV,
    EXPR_MOD,
    EXPR_CEIL_DIV,
    EXPR_MIN,
    EXPR_MAX,
};

struct expr_op {
    uint8_t code;
    uint8_t index;     /* index of the integer or the tensor */
    uint16_t position; /* position of the operator or name in the text, from 0 */
    int64_t value;
};

struct expr {
    char text[EXPR_MAX_TEXT + 1];
    uint32_t integers;
    unsigned n_ops;
    struct expr_op ops[];
};

#endif

/* The postfix program: expr_parse.c makes it, expr.c runs it. client_py/native/source.c hands it to Python. */
#ifndef KOPS_CORE_EXPR_PROGRAM_H
#define KOPS_CORE_EXPR_PROGRAM_H

#include "core/expr.h"

enum { EXPR_EXCERPT = 64 /* bytes of a text in a message, with the terminating 0 */ };

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

/* Reasons that expr_apply() gives. */
extern const char EXPR_BY_ZERO[], EXPR_TOO_LARGE[];

static inline bool expr_is_unary(enum expr_code code)
{
    return code == EXPR_NEGATE || code == EXPR_NEXT_POW2;
}

static inline bool expr_is_division(enum expr_code code)
{
    return code == EXPR_DIV || code == EXPR_MOD || code == EXPR_CEIL_DIV;
}

/* Makes a program with room for n_ops operations, zeroed. `length` is at most EXPR_MAX_TEXT. */
struct expr *expr_new(const char *text, size_t length, unsigned n_ops, struct error *e);

/* Applies an operation. Returns NULL, or the reason why there is no result. `b` is unused by unary operations. */
const char *expr_apply(enum expr_code code, int64_t a, int64_t b, int64_t *ret);

/* Copies a text for a message: printable, cut where it is long. */
const char *expr_excerpt(const char *text, size_t length, char into[EXPR_EXCERPT]);

#endif

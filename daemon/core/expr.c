/* Evaluation of expressions, and their life. expr_parse.c makes them. */
#include "core/expr.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/expr_program.h"

struct expr *expr_free(struct expr *x)
{
    free(x);
    return NULL;
}

int expr_constant(int64_t value, struct expr **ret, struct error *e)
{
    char text[24];
    int n = snprintf(text, sizeof(text), "%lld", (long long)value);
    struct expr *x = expr_new(text, (size_t)n, 1, e);

    if (!x)
        return -1;
    x->ops[0] = (struct expr_op){.code = EXPR_NUMBER, .value = value};
    *ret = x;
    return 0;
}

struct expr *expr_new(const char *text, size_t length, unsigned n_ops, struct error *e)
{
    struct expr *x = calloc(1, sizeof(*x) + n_ops * sizeof(x->ops[0]));

    if (!x) {
        error_set(e, ERROR_OUT_OF_MEMORY, "the daemon has too little memory for an expression");
        return NULL;
    }
    for (size_t i = 0; i < length; i++)
        x->text[i] = (char)(text[i] >= ' ' && text[i] <= '~' ? text[i] : '?');
    x->n_ops = n_ops;
    return x;
}

const char *expr_text(const struct expr *x)
{
    return x->text;
}

bool expr_is_constant(const struct expr *x)
{
    return x->n_ops == 1 && x->ops[0].code == EXPR_NUMBER;
}

uint32_t expr_integers_used(const struct expr *x)
{
    return x->integers;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t floor_mod(int64_t a, int64_t b)
{
    int64_t r = a % b;

    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static const char *divide(enum expr_code code, int64_t a, int64_t b, int64_t *ret)
{
    if (b == 0)
        return EXPR_BY_ZERO;
    if (b == -1) { /* the only quotient that may not fit, and C's remainder of it is undefined too */
        *ret = 0;
        return code == EXPR_MOD || !__builtin_sub_overflow(0, a, ret) ? NULL : EXPR_TOO_LARGE;
    }
    if (code == EXPR_DIV)
        *ret = floor_div(a, b);
    else if (code == EXPR_MOD)
        *ret = floor_mod(a, b);
    else
        *ret = floor_div(a, b) + (a % b != 0);
    return NULL;
}

const char *expr_apply(enum expr_code code, int64_t a, int64_t b, int64_t *ret)
{
    switch (code) {
    case EXPR_ADD:
        return __builtin_add_overflow(a, b, ret) ? EXPR_TOO_LARGE : NULL;
    case EXPR_SUB:
        return __builtin_sub_overflow(a, b, ret) ? EXPR_TOO_LARGE : NULL;
    case EXPR_MUL:
        return __builtin_mul_overflow(a, b, ret) ? EXPR_TOO_LARGE : NULL;
    case EXPR_DIV:
    case EXPR_MOD:
    case EXPR_CEIL_DIV:
        return divide(code, a, b, ret);
    case EXPR_MIN:
        *ret = a < b ? a : b;
        return NULL;
    case EXPR_MAX:
        *ret = a > b ? a : b;
        return NULL;
    case EXPR_NEGATE:
        return __builtin_sub_overflow(0, a, ret) ? EXPR_TOO_LARGE : NULL;
    case EXPR_NEXT_POW2:
        if (a > INT64_C(1) << 62)
            return EXPR_TOO_LARGE;
        *ret = a <= 1 ? 1 : INT64_C(1) << (64 - __builtin_clzll((uint64_t)a - 1));
        return NULL;
    default:
        return "is no operation";
    }
}

/* The name that stands at an operation's place in the text. */
static const char *name_at(const struct expr *x, unsigned position, char into[EXPR_EXCERPT])
{
    size_t n = strspn(x->text + position, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");

    snprintf(into, EXPR_EXCERPT, "%.*s", (int)n, x->text + position);
    return into;
}

static int fail(const struct expr *x, const struct expr_op *op, enum error_code code, const char *why, struct error *e)
{
    char excerpt[EXPR_EXCERPT];

    error_set(e, code, "`%s`: character %u: %s", expr_excerpt(x->text, strlen(x->text), excerpt), op->position + 1U,
              why);
    return error_detail_number(e, "position", op->position + 1);
}

static int load_size(const struct expr *x, const struct expr_op *op, const struct tensor *t, int64_t *ret,
                     struct error *e)
{
    int64_t i = op->value < 0 ? op->value + t->rank : op->value;
    char name[EXPR_EXCERPT], why[EXPR_EXCERPT + 96];

    if (i >= 0 && i < t->rank) {
        *ret = t->shape[i];
        return 0;
    }
    snprintf(why, sizeof(why), "%s has no dimension %lld: it has %u", name_at(x, op->position, name),
             (long long)op->value, t->rank);
    return fail(x, op, ERROR_INVALID_ARGUMENT, why, e);
}

static int load(const struct expr *x, const struct expr_op *op, const struct expr_inputs *inputs, int64_t *ret,
                struct error *e)
{
    const struct tensor *t;
    char name[EXPR_EXCERPT], why[EXPR_EXCERPT + 96];

    if (op->code == EXPR_NUMBER) {
        *ret = op->value;
        return 0;
    }
    if (op->code == EXPR_LOAD_INTEGER) {
        *ret = inputs->integers[op->index];
        return 0;
    }
    if (op->code == EXPR_LOAD_MULTIPROCESSORS) {
        *ret = inputs->multiprocessors;
        return 0;
    }
    t = inputs->tensors[op->index];
    if (!t) {
        snprintf(why, sizeof(why), "%s is null in this call and has no shape", name_at(x, op->position, name));
        return fail(x, op, ERROR_INVALID_ARGUMENT, why, e);
    }
    if (op->code == EXPR_LOAD_SIZE)
        return load_size(x, op, t, ret, e);
    *ret = op->code == EXPR_LOAD_NUMEL ? (int64_t)t->count : (int64_t)t->rank;
    return 0;
}

static int run(const struct expr *x, const struct expr_inputs *inputs, int64_t *ret, struct error *e)
{
    int64_t stack[EXPR_MAX_OPS] = {0};
    unsigned n = 0;

    for (unsigned i = 0; i < x->n_ops; i++) {
        const struct expr_op *op = &x->ops[i];
        const char *why;
        int64_t b;

        if (op->code <= EXPR_LOAD_SIZE) {
            if (load(x, op, inputs, &stack[n++], e) < 0)
                return -1;
            continue;
        }
        b = expr_is_unary(op->code) ? 0 : stack[--n];
        why = expr_apply(op->code, stack[n - 1], b, &stack[n - 1]);
        if (why)
            return fail(x, op, why == EXPR_BY_ZERO ? ERROR_INVALID_ARGUMENT : ERROR_OUT_OF_RANGE, why, e);
    }
    *ret = stack[0];
    return 0;
}

int expr_evaluate(const struct expr *x, const struct expr_inputs *inputs, int64_t *ret, struct error *e)
{
    if (x->n_ops == 1) /* most are a number or a name */
        return load(x, &x->ops[0], inputs, ret, e);
    return run(x, inputs, ret, e);
}

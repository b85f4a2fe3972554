/* Expressions: the parser, recursive descent over the grammar in expr.h, straight into the postfix program; and its
 * evaluation. */
#include "core/expr.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the parser ---- */

static struct expr *expr_new(const char *text, size_t length, unsigned n_ops, struct error *e);
static const char *expr_apply(enum expr_code code, int64_t a, int64_t b, int64_t *ret);

enum { MAX_DEPTH = KERNELS_EXPRESSION_DEPTH_MAX };

enum { EXPR_EXCERPT = 64 /* bytes of a text in a message, with the terminating 0 */ };

/* Reasons that expr_apply() gives. */
static const char EXPR_BY_ZERO[] = "division by zero", EXPR_TOO_LARGE[] = "the result does not fit 64 bits";

static bool expr_is_unary(enum expr_code code)
{
    return code == EXPR_NEGATE || code == EXPR_NEXT_POW2;
}

static bool expr_is_division(enum expr_code code)
{
    return code == EXPR_DIV || code == EXPR_MOD || code == EXPR_CEIL_DIV;
}

struct parser {
    const char *text;
    size_t length, at;
    const struct expr_scope *scope;
    unsigned depth;
    uint32_t integers;
    unsigned n_ops;
    struct expr_op ops[EXPR_MAX_OPS];
    struct error *e;
};

struct word {
    size_t at, length; /* in the text; length 0: none */
};

/* Copies a text for a message: printable, cut where it is long. */
static const char *expr_excerpt(const char *text, size_t length, char into[EXPR_EXCERPT])
{
    size_t n = length < EXPR_EXCERPT ? length : EXPR_EXCERPT - 4;

    for (size_t i = 0; i < n; i++)
        into[i] = (char)(text[i] >= ' ' && text[i] <= '~' ? text[i] : '?');
    memcpy(into + n, n < length ? "..." : "", n < length ? 4 : 1);
    return into;
}

static int __attribute__((format(printf, 4, 5)))
fail(struct parser *p, size_t at, enum error_code code, const char *format, ...)
{
    char why[ERROR_MESSAGE_MAX], excerpt[EXPR_EXCERPT];
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    error_set(p->e, code, "`%s`: character %zu: %s", expr_excerpt(p->text, p->length, excerpt), at + 1, why);
    return error_detail_number(p->e, "position", (int64_t)at + 1);
}

static int fail_syntax(struct parser *p, const char *expected)
{
    char found[] = {p->at < p->length ? p->text[p->at] : '\0', '\0'};

    if (p->at == p->length)
        return fail(p, p->at, ERROR_INVALID_ARGUMENT, "the end, where %s is expected", expected);
    if (found[0] < ' ' || found[0] > '~')
        return fail(p, p->at, ERROR_INVALID_ARGUMENT, "byte 0x%02x, where %s is expected", (unsigned char)found[0],
                    expected);
    return fail(p, p->at, ERROR_INVALID_ARGUMENT, "'%s', where %s is expected", found, expected);
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void skip_blanks(struct parser *p)
{
    while (p->at < p->length && strchr(" \t\r\n", p->text[p->at]) && p->text[p->at])
        p->at++;
}

/* The next character after blanks; 0 at the end. A byte of 0 in the text is no character of the grammar either. */
static char peek(struct parser *p)
{
    skip_blanks(p);
    return p->at < p->length ? p->text[p->at] : '\0';
}

static bool take(struct parser *p, char c)
{
    if (peek(p) != c)
        return false;
    p->at++;
    return true;
}

static struct word take_word(struct parser *p)
{
    struct word w;

    skip_blanks(p);
    w.at = p->at;
    while (p->at < p->length && (is_letter(p->text[p->at]) || (p->at > w.at && is_digit(p->text[p->at]))))
        p->at++;
    w.length = p->at - w.at;
    return w;
}

static bool word_is(const struct parser *p, struct word w, const char *name)
{
    return strlen(name) == w.length && !memcmp(p->text + w.at, name, w.length);
}

static int push(struct parser *p, size_t at, struct expr_op op)
{
    if (p->n_ops == EXPR_MAX_OPS) {
        fail(p, at, ERROR_LIMIT_EXCEEDED, "more than %d operations", EXPR_MAX_OPS);
        return error_detail_number(p->e, "limit", EXPR_MAX_OPS);
    }
    op.position = (uint16_t)at;
    p->ops[p->n_ops++] = op;
    return 0;
}

/* Adds an operation, or does it at once where its operands are constants. */
static int operate(struct parser *p, size_t at, enum expr_code code)
{
    unsigned operands = expr_is_unary(code) ? 1 : 2;
    struct expr_op *a = &p->ops[p->n_ops - operands], *last = &p->ops[p->n_ops - 1];
    const char *why;

    if (last->code == EXPR_NUMBER && last->value == 0 && expr_is_division(code))
        return fail(p, at, ERROR_INVALID_ARGUMENT, "%s", EXPR_BY_ZERO);
    if (a->code != EXPR_NUMBER || last->code != EXPR_NUMBER)
        return push(p, at, (struct expr_op){.code = (uint8_t)code});
    why = expr_apply(code, a->value, last->value, &a->value);
    if (why)
        return fail(p, at, ERROR_INVALID_ARGUMENT, "%s", why);
    p->n_ops -= operands - 1;
    return 0;
}

static int64_t digit_of(char c)
{
    if (is_digit(c))
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
}

/* A number from 0 to 2^63 − 1. */
static int parse_number(struct parser *p, int64_t *ret)
{
    size_t start = p->at;
    int64_t base = 10, value = 0;

    if (p->length - p->at >= 2 && p->text[p->at] == '0' && (p->text[p->at + 1] | 0x20) == 'x') {
        base = 16;
        p->at += 2;
        if (p->at == p->length || digit_of(p->text[p->at]) >= base)
            return fail_syntax(p, "a hexadecimal digit");
    }
    for (; p->at < p->length && (is_digit(p->text[p->at]) || is_letter(p->text[p->at])); p->at++) {
        int64_t digit = digit_of(p->text[p->at]);

        if (digit >= base)
            return fail_syntax(p, "a digit or an operator");
        if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value))
            return fail(p, start, ERROR_INVALID_ARGUMENT, "the number does not fit 64 bits");
    }
    *ret = value;
    return 0;
}

/* "n, m, a.shape[0], multiprocessors": the scope's names. */
static const char *list_names(const struct parser *p, char *into, size_t size)
{
    size_t n = 0;

    into[0] = '\0';
    for (unsigned i = 0; i < p->scope->n && n < size; i++) {
        const struct expr_name *name = &p->scope->names[i];

        if (name->kind != EXPR_UNUSABLE)
            n += (size_t)snprintf(into + n, size - n, "%s%s, ", name->name, name->kind == EXPR_TENSOR ? ".numel" : "");
    }
    if (n < size)
        snprintf(into + n, size - n, "multiprocessors");
    return into;
}

static int parse_dimension(struct parser *p, const struct expr_name *tensor, struct word property, bool call)
{
    struct expr_op op = {.code = EXPR_LOAD_SIZE, .index = (uint8_t)tensor->index};
    int64_t rank = tensor->rank < 0 ? TENSOR_MAX_RANK : tensor->rank;
    size_t at;
    bool negative;

    if (!take(p, call ? '(' : '['))
        return fail_syntax(p, call ? "(" : "[");
    negative = take(p, '-');
    skip_blanks(p);
    at = p->at;
    if (at == p->length || !is_digit(p->text[at]))
        return fail_syntax(p, "the number of a dimension");
    if (parse_number(p, &op.value) < 0)
        return -1;
    op.value = negative ? -op.value : op.value;
    if (op.value >= rank || op.value < -rank)
        return fail(p, at, ERROR_INVALID_ARGUMENT, "%s has no dimension %lld: it has %s%lld", tensor->name,
                    (long long)op.value, tensor->rank < 0 ? "at most " : "", (long long)rank);
    if (!take(p, call ? ')' : ']'))
        return fail_syntax(p, call ? ")" : "]");
    return push(p, property.at, op);
}

/* The property behind a tensor's name. The operation's place is the name's, so that a message can repeat it. */
static int parse_property(struct parser *p, const struct expr_name *tensor, struct word name)
{
    struct expr_op op = {.index = (uint8_t)tensor->index};
    struct word property;

    if (!take(p, '.'))
        return fail(p, name.at, ERROR_INVALID_ARGUMENT, "%s is a tensor: write %s.numel, %s.rank or %s.shape[0]",
                    tensor->name, tensor->name, tensor->name, tensor->name);
    property = take_word(p);
    if (word_is(p, property, "shape") || word_is(p, property, "size"))
        return parse_dimension(p, tensor, name, word_is(p, property, "size"));
    if (word_is(p, property, "numel"))
        op.code = EXPR_LOAD_NUMEL;
    else if (word_is(p, property, "rank"))
        op.code = EXPR_LOAD_RANK;
    else
        return fail(p, property.at, ERROR_INVALID_ARGUMENT,
                    "a tensor has numel, rank, shape[0] and size(0), and nothing else here");
    if (take(p, '(') && !take(p, ')'))
        return fail_syntax(p, ")");
    return push(p, name.at, op);
}

static int parse_sum(struct parser *p);

static const struct function {
    const char *name;
    enum expr_code code;
    unsigned min, max; /* arguments */
    const char *use;
} functions[] = {
    {"ceil_div", EXPR_CEIL_DIV, 2, 2, "ceil_div(a, b)"},
    {"min", EXPR_MIN, 1, EXPR_MAX_TEXT, "min(a, b)"},
    {"max", EXPR_MAX, 1, EXPR_MAX_TEXT, "max(a, b)"},
    {"next_pow2", EXPR_NEXT_POW2, 1, 1, "next_pow2(a)"},
};

static int parse_call(struct parser *p, const struct function *f, struct word name)
{
    unsigned n = 0;

    p->at++; /* the "(" */
    do {
        if (parse_sum(p) < 0)
            return -1;
        if (++n > f->max)
            break;
        if (n > 1 && operate(p, name.at, f->code) < 0)
            return -1;
    } while (take(p, ','));
    if (n < f->min || n > f->max)
        return fail(p, name.at, ERROR_INVALID_ARGUMENT, "wrong number of arguments: it is %s", f->use);
    if (!take(p, ')'))
        return fail_syntax(p, n < f->max ? "an operator, ',' or )" : "an operator or )");
    return expr_is_unary(f->code) ? operate(p, name.at, f->code) : 0;
}

static int parse_name(struct parser *p)
{
    struct word w = take_word(p);
    char names[160];
    bool call = peek(p) == '(';

    for (unsigned i = 0; i < sizeof(functions) / sizeof(functions[0]) && call; i++)
        if (word_is(p, w, functions[i].name))
            return parse_call(p, &functions[i], w);
    for (unsigned i = 0; i < p->scope->n; i++) {
        const struct expr_name *name = &p->scope->names[i];

        if (!word_is(p, w, name->name))
            continue;
        if (name->kind == EXPR_TENSOR)
            return parse_property(p, name, w);
        if (name->kind == EXPR_UNUSABLE)
            return fail(p, w.at, ERROR_INVALID_ARGUMENT, "%s is no integer; an expression computes with integers",
                        name->name);
        p->integers |= UINT32_C(1) << name->index;
        return push(p, w.at, (struct expr_op){.code = EXPR_LOAD_INTEGER, .index = (uint8_t)name->index});
    }
    if (call)
        return fail(p, w.at, ERROR_INVALID_ARGUMENT,
                    "unknown function; there are ceil_div(a, b), min(a, b), max(a, b) and next_pow2(a)");
    if (word_is(p, w, "multiprocessors"))
        return push(p, w.at, (struct expr_op){.code = EXPR_LOAD_MULTIPROCESSORS});
    return fail(p, w.at, ERROR_INVALID_ARGUMENT, "unknown name; there are %s", list_names(p, names, sizeof(names)));
}

static int parse_unary(struct parser *p)
{
    struct expr_op number = {.code = EXPR_NUMBER};
    char c = peek(p);
    size_t at = p->at;
    int r;

    if (++p->depth > MAX_DEPTH) {
        fail(p, at, ERROR_LIMIT_EXCEEDED, "nested deeper than %d", MAX_DEPTH);
        return error_detail_number(p->e, "limit", MAX_DEPTH);
    }
    if (take(p, '-')) {
        r = parse_unary(p) < 0 ? -1 : operate(p, at, EXPR_NEGATE);
    } else if (take(p, '(')) {
        r = parse_sum(p);
        if (!r && !take(p, ')'))
            r = fail_syntax(p, "an operator or )");
    } else if (is_digit(c)) {
        r = parse_number(p, &number.value) < 0 ? -1 : push(p, at, number);
    } else if (is_letter(c)) {
        r = parse_name(p);
    } else {
        r = fail_syntax(p, "a number, a name or (");
    }
    p->depth--;
    return r;
}

static int parse_product(struct parser *p)
{
    if (parse_unary(p) < 0)
        return -1;
    for (;;) {
        char c = peek(p);
        size_t at = p->at;

        if (c != '*' && c != '/' && c != '%')
            return 0;
        p->at++;
        if (c == '/' && p->at < p->length && p->text[p->at] == '/')
            p->at++;
        if (parse_unary(p) < 0 || operate(p, at, c == '*' ? EXPR_MUL : c == '/' ? EXPR_DIV : EXPR_MOD) < 0)
            return -1;
    }
}

static int parse_sum(struct parser *p)
{
    if (parse_product(p) < 0)
        return -1;
    for (;;) {
        char c = peek(p);
        size_t at = p->at;

        if (c != '+' && c != '-')
            return 0;
        p->at++;
        if (parse_product(p) < 0 || operate(p, at, c == '+' ? EXPR_ADD : EXPR_SUB) < 0)
            return -1;
    }
}

int expr_parse(const char *text, size_t length, const struct expr_scope *scope, struct expr **ret, struct error *e)
{
    struct parser p = {.text = text, .length = length, .scope = scope, .e = e};
    struct expr *x;

    if (length > EXPR_MAX_TEXT) {
        fail(&p, EXPR_MAX_TEXT, ERROR_LIMIT_EXCEEDED, "an expression has at most %d characters", EXPR_MAX_TEXT);
        return error_detail_number(e, "limit", EXPR_MAX_TEXT);
    }
    if (parse_sum(&p) < 0)
        return -1;
    if (peek(&p) || p.at < p.length)
        return fail_syntax(&p, "an operator or the end");
    x = expr_new(text, length, p.n_ops, e);
    if (!x)
        return -1;
    memcpy(x->ops, p.ops, p.n_ops * sizeof(p.ops[0]));
    x->integers = p.integers;
    *ret = x;
    return 0;
}

/* ---- evaluation ---- */

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

/* Makes a program with room for n_ops operations, zeroed. `length` is at most EXPR_MAX_TEXT. */
static struct expr *expr_new(const char *text, size_t length, unsigned n_ops, struct error *e)
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

/* Applies an operation. Returns NULL, or the reason why there is no result. `b` is unused by unary operations. */
static const char *expr_apply(enum expr_code code, int64_t a, int64_t b, int64_t *ret)
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

static int fail_evaluation(const struct expr *x, const struct expr_op *op, enum error_code code, const char *why,
                           struct error *e)
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
    return fail_evaluation(x, op, ERROR_INVALID_ARGUMENT, why, e);
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
        return fail_evaluation(x, op, ERROR_INVALID_ARGUMENT, why, e);
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
            return fail_evaluation(x, op, why == EXPR_BY_ZERO ? ERROR_INVALID_ARGUMENT : ERROR_OUT_OF_RANGE, why, e);
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

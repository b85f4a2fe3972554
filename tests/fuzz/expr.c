/* core/expr: whatever the text, it is refused with a place inside it, or evaluates without undefined behaviour to what
 * its text in parentheses evaluates to.
 *
 * The input's first 17 bytes are two integers and a size; the rest is the text. */
#include <string.h>

#include "core/expr.h"
#include "tests/fuzz/fuzz.h"

enum { HEAD = 17 };

static const struct expr_name NAMES[] = {
    {"n", EXPR_INTEGER, 0, 0}, {"m", EXPR_INTEGER, 1, 0},    {"a", EXPR_TENSOR, 0, -1},
    {"b", EXPR_TENSOR, 1, 2},  {"none", EXPR_TENSOR, 2, -1}, {"x", EXPR_UNUSABLE, 2, 0},
};
static const struct expr_scope SCOPE = {NAMES, sizeof(NAMES) / sizeof(NAMES[0])};

static void check_error(const struct error *e, size_t size)
{
    FUZZ_CHECK(e->code == ERROR_INVALID_ARGUMENT || e->code == ERROR_LIMIT_EXCEEDED || e->code == ERROR_OUT_OF_RANGE);
    FUZZ_CHECK(e->n_details >= 1 && !strcmp(e->details[0].key, "position"));
    FUZZ_CHECK(e->details[0].number >= 1 && e->details[0].number <= (int64_t)size + 1);
    for (const char *c = e->message; *c; c++)
        FUZZ_CHECK(*c >= ' ' && *c <= '~'); /* it goes to people, whatever the text was */
}

/* The same text in parentheses has the same value. */
static void check_in_parentheses(const char *text, size_t size, const struct expr_inputs *inputs, int64_t value)
{
    char in_parentheses[EXPR_MAX_TEXT + 2];
    struct error e;
    struct expr *x;
    int64_t again;

    if (size + 2 > EXPR_MAX_TEXT)
        return;
    in_parentheses[0] = '(';
    memcpy(in_parentheses + 1, text, size);
    in_parentheses[size + 1] = ')';
    if (expr_parse(in_parentheses, size + 2, &SCOPE, &x, &e) < 0) {
        FUZZ_CHECK(e.code == ERROR_LIMIT_EXCEEDED); /* one deeper than may be */
        return;
    }
    FUZZ_CHECK(expr_evaluate(x, inputs, &again, &e) == 0 && again == value);
    expr_free(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t integers[2], value;
    struct tensor a = {.dtype = DTYPE_F32, .rank = 3, .shape = {4, 5, 6}, .count = 120};
    struct tensor b = {.dtype = DTYPE_F32, .rank = 2};
    const struct tensor *const tensors[] = {&a, &b, NULL};
    const struct expr_inputs inputs = {integers, tensors, 132};
    struct error e = {0};
    struct expr *x;

    if (size < HEAD)
        return 0;
    memcpy(integers, data, sizeof(integers));
    b.shape[0] = b.shape[1] = data[HEAD - 1];
    b.count = (uint64_t)(b.shape[0] * b.shape[1]);
    data += HEAD;
    size -= HEAD;
    if (expr_parse((const char *)data, size, &SCOPE, &x, &e) < 0) {
        check_error(&e, size);
        return 0;
    }
    FUZZ_CHECK(strlen(expr_text(x)) == size && (expr_integers_used(x) & ~3U) == 0);
    if (expr_evaluate(x, &inputs, &value, &e) < 0) {
        FUZZ_CHECK(!expr_is_constant(x));
        check_error(&e, size);
    } else {
        check_in_parentheses((const char *)data, size, &inputs, value);
    }
    expr_free(x);
    return 0;
}

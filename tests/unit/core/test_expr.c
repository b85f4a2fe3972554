/* Expressions: the values they have, what is refused and where, what is read. Arithmetic and the rows of
 * tests/vectors are tested by the interpreter, whose code this is (tests/interpret/test_expressions.py). */
#include "core/expr.h"
#include "tests/support/unit.h"

static const struct expr_name NAMES[] = {
    {"n", EXPR_INTEGER, 0, 0},    {"m", EXPR_INTEGER, 3, 0},      {"a", EXPR_TENSOR, 0, 3},   {"b", EXPR_TENSOR, 1, -1},
    {"gone", EXPR_TENSOR, 2, -1}, {"alpha", EXPR_UNUSABLE, 5, 0}, {"min", EXPR_INTEGER, 1, 0}};
static const struct expr_scope SCOPE = {NAMES, sizeof(NAMES) / sizeof(NAMES[0])};

static const struct tensor A = {.dtype = DTYPE_F32, .rank = 3, .shape = {2, 3, 5}, .count = 30},
                           B = {.dtype = DTYPE_F32, .rank = 1, .shape = {7}, .count = 7};
static const struct tensor *const TENSORS[] = {&A, &B, NULL};

static int evaluate(const char *text, int64_t n, int64_t m, int64_t *ret, struct error *e)
{
    const int64_t integers[] = {n, 11, 0, m};
    const struct expr_inputs inputs = {integers, TENSORS, 132};
    struct expr *x;
    int r;

    if (expr_parse(text, strlen(text), &SCOPE, &x, e) < 0)
        return -2;
    r = expr_evaluate(x, &inputs, ret, e);
    expr_free(x);
    return r;
}

/* Beside the vectors and the random trees: what binds how, and values at the ends of ranges. */
TEST(has_the_value)
{
    static const struct {
        const char *text;
        int64_t value;
    } cases[] = {
        {"n - m - 1", 996},
        {"100 / m / 3", 11},
        {"n % 7 * 2", 12},
        {"2 - -m", 5},
        {"min + 1", 12}, /* a parameter may be called as a function is */
        {"max(n, m, 2000, 5)", 2000},
        {"next_pow2(1024)", 1024},
        {"a.numel ( ) * 2", 60},
        {"min(ceil_div(a.numel, 4), multiprocessors * 8)", 8},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error e = {0};
        int64_t value = 0;
        int r = evaluate(cases[i].text, 1000, 3, &value, &e);

        if (r < 0 || value != cases[i].value)
            fail_msg("%s: %d, %lld: %s", cases[i].text, r, (long long)value, e.message);
    }
}

/* Refused by the parse (-2) or in a call (-1), with a word of the message and the character that is at fault. */
TEST(is_refused)
{
    static const struct {
        const char *text;
        int result;
        enum error_code code;
        int64_t position;
        const char *word;
    } cases[] = {
        {"", -2, ERROR_INVALID_ARGUMENT, 1, "the end"},
        {"n +", -2, ERROR_INVALID_ARGUMENT, 4, "the end"},
        {"n n", -2, ERROR_INVALID_ARGUMENT, 3, "operator"},
        {"(n", -2, ERROR_INVALID_ARGUMENT, 3, ")"},
        {"n)", -2, ERROR_INVALID_ARGUMENT, 2, "')'"},
        {"1.5", -2, ERROR_INVALID_ARGUMENT, 2, "'.'"},
        {"12ab", -2, ERROR_INVALID_ARGUMENT, 3, "digit"},
        {"0x", -2, ERROR_INVALID_ARGUMENT, 3, "hexadecimal"},
        {"n ** 2", -2, ERROR_INVALID_ARGUMENT, 4, "'*'"},
        {"n + \xc3\xa4", -2, ERROR_INVALID_ARGUMENT, 5, "0xc3"},
        {"9223372036854775808", -2, ERROR_INVALID_ARGUMENT, 1, "64 bits"},
        {"n + q", -2, ERROR_INVALID_ARGUMENT, 5, "n, m, a.numel, b.numel, gone.numel, min, multiprocessors"},
        {"n + alpha", -2, ERROR_INVALID_ARGUMENT, 5, "no integer"},
        {"a + 1", -2, ERROR_INVALID_ARGUMENT, 1, "a.numel"},
        {"a.length", -2, ERROR_INVALID_ARGUMENT, 3, "numel"},
        {"n.numel", -2, ERROR_INVALID_ARGUMENT, 2, "'.'"},
        {"a.shape", -2, ERROR_INVALID_ARGUMENT, 8, "["},
        {"a.shape[n]", -2, ERROR_INVALID_ARGUMENT, 9, "dimension"},
        {"a.shape[99999999999999999999]", -2, ERROR_INVALID_ARGUMENT, 9, "64 bits"},
        {"a.size[0]", -2, ERROR_INVALID_ARGUMENT, 7, "("},
        {"a.shape[3]", -2, ERROR_INVALID_ARGUMENT, 9, "it has 3"},
        {"b.shape[8]", -2, ERROR_INVALID_ARGUMENT, 9, "at most 8"},
        {"foo(1)", -2, ERROR_INVALID_ARGUMENT, 1, "ceil_div(a, b)"},
        {"ceil_div(1)", -2, ERROR_INVALID_ARGUMENT, 1, "ceil_div(a, b)"},
        {"next_pow2(1, 2)", -2, ERROR_INVALID_ARGUMENT, 1, "next_pow2(a)"},
        {"max()", -2, ERROR_INVALID_ARGUMENT, 5, "')'"},
        {"ceil_div", -2, ERROR_INVALID_ARGUMENT, 1, "unknown name"},
        {"n + 1 / 0", -2, ERROR_INVALID_ARGUMENT, 7, "zero"},
        {"9223372036854775807 + 1", -2, ERROR_INVALID_ARGUMENT, 21, "64 bits"},
        {"n / (m - 3)", -1, ERROR_INVALID_ARGUMENT, 3, "zero"},
        {"2 + ceil_div(n, m - 3)", -1, ERROR_INVALID_ARGUMENT, 5, "zero"},
        {"n * 9223372036854775807", -1, ERROR_OUT_OF_RANGE, 3, "64 bits"},
        {"-(m - 9223372036854775807 - 4)", -1, ERROR_OUT_OF_RANGE, 1, "64 bits"},
        {"(m - 9223372036854775807 - 4) / (2 - m)", -1, ERROR_OUT_OF_RANGE, 31, "64 bits"},
        {"next_pow2(m + 0x4000000000000000)", -1, ERROR_OUT_OF_RANGE, 1, "64 bits"},
        {"1 + b.shape[1]", -1, ERROR_INVALID_ARGUMENT, 5, "b has no dimension 1: it has 1"},
        {"2 * gone.numel", -1, ERROR_INVALID_ARGUMENT, 5, "gone is null"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error e = {0};
        int64_t value;
        int r = evaluate(cases[i].text, 1000, 3, &value, &e);

        if (r != cases[i].result || e.code != cases[i].code || e.n_details != 1 ||
            strcmp(e.details[0].key, "position") != 0 || e.details[0].number != cases[i].position ||
            !strstr(e.message, cases[i].word))
            fail_msg("%s: %d, %s at %lld: %s", cases[i].text, r, error_code_name(e.code),
                     (long long)e.details[0].number, e.message);
    }
}

/* A text with a byte of 0 in it, which ends no text here. */
TEST(bytes_of_zero_are_refused)
{
    struct error e = {0};
    struct expr *x;

    assert_int_equal(expr_parse("n\0+1", 4, &SCOPE, &x, &e), -1);
    assert_non_null(strstr(e.message, "0x00"));
    assert_int_equal(expr_parse("n\0", 2, &SCOPE, &x, &e), -1);
    assert_int_equal(expr_parse("n + 1", 1, &SCOPE, &x, &e), 0); /* no more of a text is read than its length */
    assert_string_equal(expr_text(x), "n");
    expr_free(x);
}

TEST(knows_what_it_reads)
{
    struct expr *x;

    MUST(expr_parse("n + m + a.numel", 15, &SCOPE, &x, &e));
    assert_int_equal(expr_integers_used(x), 1 << 0 | 1 << 3);
    assert_false(expr_is_constant(x));
    expr_free(x);
    MUST(expr_parse("(3 + 4) * 2 - 3", 15, &SCOPE, &x, &e));
    assert_int_equal(expr_integers_used(x), 0);
    assert_true(expr_is_constant(x));
    expr_free(x);
    MUST(expr_constant(-12, &x, &e));
    assert_true(expr_is_constant(x));
    assert_string_equal(expr_text(x), "-12");
    assert_null(expr_free(x));
    assert_null(expr_free(NULL));
}

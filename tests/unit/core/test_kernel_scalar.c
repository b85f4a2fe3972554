/* Scalar arguments: the vectors, and what is told of a refusal. Random numbers: tests/rules. */
#include <stdio.h>

#include "core/kernel_internal.h"
#include "tests/support/unit.h"

#include "scalars_vectors.h"

static struct kernel_param param_of(enum dtype dtype)
{
    return (struct kernel_param){
        .name = "alpha", .index = 2, .kind = KERNEL_SCALAR, .dtype = dtype, .size = (uint16_t)dtype_size(dtype)};
}

static void refused(int r, const struct error *e, enum error_code code)
{
    assert_int_equal(r, -1);
    assert_int_equal(e->code, code);
    assert_string_equal(e->details[0].key, "key");
    assert_string_equal(e->details[0].text, "args[2]");
    assert_non_null(strstr(e->message, "alpha"));
}

/* Which numbers each type takes, and with which bytes: tests/vectors/scalars.json. */
TEST(a_number_out_of_range_is_told_the_range)
{
    static const struct {
        enum dtype dtype;
        int64_t value, min, max;
    } cases[] = {
        {DTYPE_I8, -129, -128, 127}, {DTYPE_U16, 65536, 0, 65535}, {DTYPE_I32, INT64_MAX, INT32_MIN, INT32_MAX}};
    const struct kernel_param u64 = param_of(DTYPE_U64);
    unsigned char bytes[8];
    struct error e = {0};
    int64_t back;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct kernel_param p = param_of(cases[i].dtype);

        refused(kernel_scalar_from_int(&p, cases[i].value, bytes, &e), &e, ERROR_OUT_OF_RANGE);
        assert_texts(e.details[1].key, "min", e.details[2].key, "max");
        assert_true(e.details[1].number == cases[i].min && e.details[2].number == cases[i].max);
        assert_int_equal(kernel_scalar_from_int(&p, cases[i].min, bytes, &e), 0);
        memset(bytes + p.size, 0xff, sizeof(bytes) - p.size);
        assert_int_equal(kernel_scalar_to_int(&p, bytes, &back, &e), 0);
        assert_true(back == cases[i].min);
    }
    refused(kernel_scalar_from_int(&u64, -1, bytes, &e), &e, ERROR_OUT_OF_RANGE);
    assert_string_equal(e.details[2].text, "18446744073709551615");
    assert_int_equal(kernel_scalar_from_uint(&u64, UINT64_MAX, bytes, &e), 0);
    refused(kernel_scalar_to_int(&u64, bytes, &back, &e), &e, ERROR_OUT_OF_RANGE);
}

static enum dtype dtype_of(const char *text)
{
#define X(NAME, name, value, size)                                                                                     \
    if (!strcmp(text, name))                                                                                           \
        return DTYPE_##NAME;
    KOPS_DTYPES(X)
#undef X
    fail_msg("no dtype %s", text);
    return DTYPE_F32;
}

/* The Python client and the interpreter run the same rows. */
TEST(has_the_bytes_that_the_clients_give_it)
{
    for (size_t i = 0; i < sizeof(scalars) / sizeof(scalars[0]); i++) {
        const struct kernel_param p = param_of(dtype_of(scalars[i].dtype));
        const char *kind = scalars[i].kind, *number = scalars[i].number;
        const char *wanted = scalars[i].error ? scalars[i].error : scalars[i].bytes;
        char got[24] = "";
        unsigned char value[8];
        struct error e;
        int r;

        if (!strcmp(kind, "int"))
            r = kernel_scalar_from_int(&p, strtoll(number, NULL, 10), value, &e);
        else if (!strcmp(kind, "uint"))
            r = kernel_scalar_from_uint(&p, strtoull(number, NULL, 10), value, &e);
        else if (!strcmp(kind, "float"))
            r = kernel_scalar_from_float(&p, strtod(number, NULL), value, &e);
        else
            r = kernel_scalar_from_bool(&p, number[0] == '1', value, &e);
        for (unsigned j = 0; r == 0 && j < p.size; j++)
            snprintf(got + 2 * j, 3, "%02x", value[j]);
        if (strcmp(r < 0 ? error_code_name(e.code) : got, wanted) != 0)
            fail_msg("%s %s %s is %s, not %s", scalars[i].dtype, kind, number, r < 0 ? error_code_name(e.code) : got,
                     wanted);
    }
}

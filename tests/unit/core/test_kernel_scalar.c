/* Scalar arguments: every type's bytes and range, and rounding to the narrow floating-point types. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

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

TEST(integers_have_their_types_range)
{
    static const struct {
        enum dtype dtype;
        int64_t min;
        uint64_t max;
    } types[] = {
        {DTYPE_I8, -128, 127},
        {DTYPE_U8, 0, 255},
        {DTYPE_I16, -32768, 32767},
        {DTYPE_U16, 0, 65535},
        {DTYPE_I32, INT32_MIN, INT32_MAX},
        {DTYPE_U32, 0, UINT32_MAX},
        {DTYPE_I64, INT64_MIN, INT64_MAX},
        {DTYPE_U64, 0, UINT64_MAX},
        {DTYPE_BOOL, 0, 1},
    };

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct kernel_param p = param_of(types[i].dtype);
        unsigned char bytes[8];
        struct error e = {0};
        int64_t back;

        assert_int_equal(kernel_scalar_from_int(&p, types[i].min, bytes, &e), 0);
        assert_memory_equal(bytes, &types[i].min, p.size);
        assert_int_equal(kernel_scalar_to_int(&p, bytes, &back, &e), 0);
        assert_true(back == types[i].min);
        assert_int_equal(kernel_scalar_from_uint(&p, types[i].max, bytes, &e), 0);
        assert_memory_equal(bytes, &types[i].max, p.size);
        if (types[i].max <= INT64_MAX) {
            assert_int_equal(kernel_scalar_to_int(&p, bytes, &back, &e), 0);
            assert_true(back == (int64_t)types[i].max);
            assert_int_equal(kernel_scalar_from_int(&p, back, bytes, &e), 0);
        } else {
            refused(kernel_scalar_to_int(&p, bytes, &back, &e), &e, ERROR_OUT_OF_RANGE);
        }
        if (types[i].min > INT64_MIN) {
            refused(kernel_scalar_from_int(&p, types[i].min - 1, bytes, &e), &e, ERROR_OUT_OF_RANGE);
            assert_string_equal(e.details[1].key, "min");
            assert_true(e.details[1].number == types[i].min);
        }
        if (types[i].max < INT64_MAX)
            refused(kernel_scalar_from_int(&p, (int64_t)types[i].max + 1, bytes, &e), &e, ERROR_OUT_OF_RANGE);
        if (types[i].max < UINT64_MAX) {
            refused(kernel_scalar_from_uint(&p, types[i].max + 1, bytes, &e), &e, ERROR_OUT_OF_RANGE);
            assert_string_equal(e.details[2].key, "max");
            assert_true(e.details[2].number == (int64_t)types[i].max);
        } else {
            refused(kernel_scalar_from_int(&p, -1, bytes, &e), &e, ERROR_OUT_OF_RANGE);
            assert_string_equal(e.details[2].text, "18446744073709551615");
        }
    }
}

static uint64_t float_bits(enum dtype dtype, double value)
{
    struct kernel_param p = param_of(dtype);
    unsigned char bytes[8];
    uint64_t bits;

    MUST(kernel_scalar_from_float(&p, value, bytes, &e));
    memcpy(&bits, bytes, sizeof(bits));
    return bits;
}

static double half_value(unsigned bits)
{
    unsigned exponent = bits >> 10 & 31, mantissa = bits & 1023;

    return exponent ? ldexp(1024 + mantissa, (int)exponent - 25) : ldexp(mantissa, -24);
}

static double bfloat_value(unsigned bits)
{
    uint32_t wide = bits << 16;
    float f;

    memcpy(&f, &wide, sizeof(f));
    return (double)f;
}

/* No other number of the type is nearer, and at equal distance the even one is taken. */
static void checks_nearest(enum dtype dtype, double value, double (*value_of)(unsigned), unsigned largest)
{
    unsigned bits = (unsigned)float_bits(dtype, value);
    double distance = fabs(value_of(bits) - value);

    for (unsigned other = bits ? bits - 1 : 0; other <= bits + 1 && other <= largest; other++) {
        double d = fabs(value_of(other) - value);

        if (other != bits && (d < distance || (d == distance && !(other & 1))))
            fail_msg("%s of %a: 0x%x, but 0x%x is nearer", dtype_name(dtype), value, bits, other);
    }
}

TEST(no_other_number_is_nearer)
{
    unsigned seed = (unsigned)time(NULL);

    srand(seed);
    for (int i = 0; i < 200000; i++) {
        unsigned h = (unsigned)rand() % 0x7bff, b = (unsigned)rand() % 0x7f7f;
        double part = rand() % 4 ? (rand() % 4096) / 4096.0 : 0.5;

        checks_nearest(DTYPE_F16, half_value(h) + part * (half_value(h + 1) - half_value(h)), half_value, 0x7bff);
        checks_nearest(DTYPE_BF16, bfloat_value(b) + part * (bfloat_value(b + 1) - bfloat_value(b)), bfloat_value,
                       0x7f7f);
    }
}

/* Beside the vectors. */
TEST(very_small_and_very_large_floats)
{
    static const struct {
        enum dtype dtype;
        double value;
        uint64_t bits;
    } cases[] = {
        {DTYPE_F32, 1e-60, 0},
        {DTYPE_F16, 1e-300, 0},
        {DTYPE_F16, -5e-324, 0x8000},
        {DTYPE_F16, 0x1.0020000001p0, 0x3c01}, /* no tie, though a float would make it one */
    };
    static const struct {
        enum dtype dtype;
        double value;
    } refusals[] = {{DTYPE_F32, 1e39}, {DTYPE_F32, -DBL_MAX}, {DTYPE_F16, DBL_MAX}, {DTYPE_BF16, -1e40}};
    const struct kernel_param f32 = param_of(DTYPE_F32);
    unsigned char bytes[8];
    struct error e = {0};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (float_bits(cases[i].dtype, cases[i].value) != cases[i].bits)
            fail_msg("%s of %a: 0x%llx", dtype_name(cases[i].dtype), cases[i].value,
                     (unsigned long long)float_bits(cases[i].dtype, cases[i].value));
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const struct kernel_param p = param_of(refusals[i].dtype);

        print_message("%s of %a\n", dtype_name(refusals[i].dtype), refusals[i].value);
        refused(kernel_scalar_from_float(&p, refusals[i].value, bytes, &e), &e, ERROR_OUT_OF_RANGE);
    }
    refused(kernel_scalar_from_bool(&f32, true, bytes, &e), &e, ERROR_WRONG_TYPE);
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

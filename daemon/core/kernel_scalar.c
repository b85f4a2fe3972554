/* Scalar arguments of user kernels: numbers as a client sends them, into the bytes that the kernel's parameter has. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/kernel_internal.h"

/* Ranges of the integer types. */
static const struct range {
    enum dtype dtype;
    int64_t min;
    uint64_t max;
} ranges[] = {
    {DTYPE_I8, INT8_MIN, INT8_MAX},    {DTYPE_U8, 0, UINT8_MAX},          {DTYPE_I16, INT16_MIN, INT16_MAX},
    {DTYPE_U16, 0, UINT16_MAX},        {DTYPE_I32, INT32_MIN, INT32_MAX}, {DTYPE_U32, 0, UINT32_MAX},
    {DTYPE_I64, INT64_MIN, INT64_MAX}, {DTYPE_U64, 0, UINT64_MAX},        {DTYPE_BOOL, 0, 1},
};

static const struct range *range_of(enum dtype dtype)
{
    for (unsigned i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (ranges[i].dtype == dtype)
            return &ranges[i];
    return NULL;
}

bool kernel_is_integer(enum dtype dtype)
{
    return range_of(dtype) != NULL;
}

static int add_key(const struct kernel_param *p, struct error *e)
{
    char key[16];

    snprintf(key, sizeof(key), "args[%u]", p->index);
    return error_detail_text(e, "key", key);
}

static int wrong_type(const struct kernel_param *p, const char *given, const char *advice, struct error *e)
{
    error_set(e, ERROR_WRONG_TYPE, "args[%u]: %s is a scalar of type %s, and the argument is a %s; %s", p->index,
              p->name, dtype_name(p->dtype), given, advice);
    return add_key(p, e);
}

static int outside(const struct kernel_param *p, const struct range *r, const char *value, struct error *e)
{
    char max[24];

    snprintf(max, sizeof(max), "%llu", (unsigned long long)r->max);
    error_set(e, ERROR_OUT_OF_RANGE, "args[%u]: %s is %s, but a scalar of type %s is from %lld to %s", p->index,
              p->name, value, dtype_name(p->dtype), (long long)r->min, max);
    add_key(p, e);
    error_detail_number(e, "min", r->min);
    if (r->max > INT64_MAX)
        return error_detail_text(e, "max", max);
    return error_detail_number(e, "max", (int64_t)r->max);
}

/* To a format of 1 sign bit, `exponent` bits and `mantissa` bits, rounded to nearest, ties to even, in one step. Larger
 * values become infinite. */
static uint16_t narrow(double value, unsigned exponent, unsigned mantissa)
{
    const int bias = (1 << (exponent - 1)) - 1;
    const uint16_t infinity = (uint16_t)(((1U << exponent) - 1) << mantissa);
    uint64_t bits, significand, q, rest, half;
    unsigned shift = 52 - mantissa;
    uint16_t sign;
    int power;

    memcpy(&bits, &value, sizeof(bits));
    sign = (uint16_t)(bits >> 63 << (exponent + mantissa));
    power = (int)(bits >> 52 & 0x7ff) - 1023;
    significand = bits & ((UINT64_C(1) << 52) - 1);
    if (power == 1024) /* a NaN stays quiet and keeps its upper bits */
        return (uint16_t)(sign | infinity | (significand ? significand >> shift | 1U << (mantissa - 1) : 0));
    if (power == -1023) /* zero, and values far below the smallest */
        return sign;
    significand |= UINT64_C(1) << 52;
    if (power < 1 - bias)
        shift += (unsigned)(1 - bias - power);
    if (shift > 54)
        return sign;
    q = significand >> shift;
    rest = significand & ((UINT64_C(1) << shift) - 1);
    half = UINT64_C(1) << (shift - 1);
    q += rest > half || (rest == half && (q & 1));
    /* A normal significand's leading bit counts as one in the exponent's field, and so does a carry. */
    if (power >= 1 - bias)
        q += (uint64_t)(power + bias - 1) << mantissa;
    return (uint16_t)(sign | (q < infinity ? q : infinity));
}

/* The bytes of a float parameter; false when a finite value becomes infinite. */
static bool put_float(enum dtype dtype, double value, unsigned char ret[8])
{
    uint16_t half;
    float single;

    memset(ret, 0, 8);
    switch (dtype) {
    case DTYPE_F64:
        memcpy(ret, &value, sizeof(value));
        return true;
    case DTYPE_F32:
        single = (float)value;
        memcpy(ret, &single, sizeof(single));
        return !isinf(single) || isinf(value);
    default:
        half = dtype == DTYPE_F16 ? narrow(value, 5, 10) : narrow(value, 8, 7);
        memcpy(ret, &half, sizeof(half));
        return isinf(value) || isnan(value) || (half & 0x7fff) != (dtype == DTYPE_F16 ? 0x7c00 : 0x7f80);
    }
}

static int set_float(const struct kernel_param *p, double value, unsigned char ret[8], struct error *e)
{
    unsigned char bytes[8];

    if (!put_float(p->dtype, value, bytes)) {
        error_set(e, ERROR_OUT_OF_RANGE, "args[%u]: %s is %g, which is too large for a scalar of type %s", p->index,
                  p->name, value, dtype_name(p->dtype));
        return add_key(p, e);
    }
    memcpy(ret, bytes, sizeof(bytes));
    return 0;
}

/* The machines that this runs on, and their devices, have the least significant byte first. */
static int set_integer(uint64_t bits, unsigned char ret[8])
{
    memcpy(ret, &bits, sizeof(bits));
    return 0;
}

int kernel_scalar_from_int(const struct kernel_param *p, int64_t value, unsigned char ret[8], struct error *e)
{
    const struct range *r = range_of(p->dtype);
    char text[24];

    if (!r)
        return set_float(p, (double)value, ret, e);
    if (value >= r->min && (value < 0 || (uint64_t)value <= r->max))
        return set_integer((uint64_t)value, ret);
    snprintf(text, sizeof(text), "%lld", (long long)value);
    return outside(p, r, text, e);
}

int kernel_scalar_from_uint(const struct kernel_param *p, uint64_t value, unsigned char ret[8], struct error *e)
{
    const struct range *r = range_of(p->dtype);
    char text[24];

    if (!r)
        return set_float(p, (double)value, ret, e);
    if (value <= r->max)
        return set_integer(value, ret);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    return outside(p, r, text, e);
}

int kernel_scalar_from_float(const struct kernel_param *p, double value, unsigned char ret[8], struct error *e)
{
    if (range_of(p->dtype))
        return wrong_type(p, "float", "convert it first", e);
    return set_float(p, value, ret, e);
}

int kernel_scalar_from_bool(const struct kernel_param *p, bool value, unsigned char ret[8], struct error *e)
{
    if (!range_of(p->dtype))
        return wrong_type(p, "bool", "give 0.0 or 1.0", e);
    return set_integer(value, ret);
}

int kernel_scalar_from_bytes(const struct kernel_param *p, const void *bytes, size_t length, struct kernel_arg *ret,
                             struct error *e)
{
    char given[48] = "the argument is something else";

    if (bytes && length == p->size) {
        ret->bytes = bytes;
        return 0;
    }
    if (bytes)
        snprintf(given, sizeof(given), "the argument has %zu", length);
    error_set(e, ERROR_WRONG_TYPE, "args[%u]: %s is a structure of %u bytes: give its bytes; %s", p->index, p->name,
              p->size, given);
    return add_key(p, e);
}

int kernel_scalar_to_int(const struct kernel_param *p, const unsigned char value[8], int64_t *ret, struct error *e)
{
    const struct range *r = range_of(p->dtype);
    uint64_t bits, mask = UINT64_MAX >> (64 - 8 * p->size);

    memcpy(&bits, value, sizeof(bits));
    bits &= mask;
    if (r->min < 0 && bits & (mask ^ mask >> 1))
        bits |= ~mask;
    if (r->min == 0 && bits > INT64_MAX) {
        error_set(e, ERROR_OUT_OF_RANGE, "args[%u]: %s is %llu, but expressions compute with numbers below 2^63",
                  p->index, p->name, (unsigned long long)bits);
        add_key(p, e);
        error_detail_number(e, "min", 0);
        return error_detail_number(e, "max", INT64_MAX);
    }
    *ret = (int64_t)bits;
    return 0;
}

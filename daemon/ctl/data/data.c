#include "data.h"

#include <math.h>
#include <string.h>

enum kind { FLOATING, SIGNED, UNSIGNED, BOOLEAN };

/* How each dtype lays out its bits. */
static const struct format {
    enum kind kind;
    unsigned bits, mantissa, bias;
    bool finite; /* the largest exponent is one as any other, NaN has all bits set */
} formats[] = {
    [KOPS_F32] = {FLOATING, 32, 23, 127, false},  [KOPS_F64] = {FLOATING, 64, 52, 1023, false},
    [KOPS_F16] = {FLOATING, 16, 10, 15, false},   [KOPS_BF16] = {FLOATING, 16, 7, 127, false},
    [KOPS_I8] = {SIGNED, 8, 0, 0, false},         [KOPS_U8] = {UNSIGNED, 8, 0, 0, false},
    [KOPS_I16] = {SIGNED, 16, 0, 0, false},       [KOPS_U16] = {UNSIGNED, 16, 0, 0, false},
    [KOPS_I32] = {SIGNED, 32, 0, 0, false},       [KOPS_U32] = {UNSIGNED, 32, 0, 0, false},
    [KOPS_I64] = {SIGNED, 64, 0, 0, false},       [KOPS_U64] = {UNSIGNED, 64, 0, 0, false},
    [KOPS_BOOL] = {BOOLEAN, 8, 0, 0, false},      [KOPS_F8_E4M3] = {FLOATING, 8, 3, 7, true},
    [KOPS_F8_E5M2] = {FLOATING, 8, 2, 15, false},
};

uint64_t data_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t random_bits(const struct format *f, uint64_t *state)
{
    const uint64_t random = data_random(state);
    const uint64_t mantissa = random & ((UINT64_C(1) << f->mantissa) - 1);
    const uint64_t exponent = f->bias - 1 - (random >> 58) % 6;

    if (f->kind != FLOATING)
        return (random >> 32) % (f->kind == BOOLEAN ? 2 : 100);
    return (random >> 57 & 1) << (f->bits - 1) | exponent << f->mantissa | mantissa;
}

/* Little-endian: the low bytes are the element. */
static void put(void *data, size_t index, const struct format *f, uint64_t bits)
{
    memcpy((char *)data + index * (f->bits / 8), &bits, f->bits / 8);
}

void data_fill(void *data, size_t count, enum kops_dtype dtype, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        put(data, i, &formats[dtype], random_bits(&formats[dtype], &seed));
}

static unsigned exponent_max(const struct format *f)
{
    return (1U << (f->bits - 1 - f->mantissa)) - 1;
}

/* Floats of up to 32 bits; doubles are the machine's own. */
static double decode(uint64_t bits, const struct format *f)
{
    const unsigned top = exponent_max(f), all = (1U << f->mantissa) - 1;
    const unsigned exponent = bits >> f->mantissa & top, mantissa = bits & all;
    double value;

    if (exponent == top && (!f->finite || mantissa == all))
        value = mantissa ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - (int)f->bias - (int)f->mantissa);
    else
        value = ldexp(mantissa | 1U << f->mantissa, (int)exponent - (int)f->bias - (int)f->mantissa);
    return bits >> (f->bits - 1) & 1 ? -value : value;
}

double data_get(const void *data, size_t index, enum kops_dtype dtype)
{
    const struct format *f = &formats[dtype];
    uint64_t bits = 0;
    double value;

    memcpy(&bits, (const char *)data + index * (f->bits / 8), f->bits / 8);
    if (f->kind == SIGNED)
        return (double)((int64_t)(bits << (64 - f->bits)) >> (64 - f->bits));
    if (f->kind != FLOATING)
        return (double)bits;
    if (f->bits < 64)
        return decode(bits, f);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

bool data_is_float(enum kops_dtype dtype)
{
    return formats[dtype].kind == FLOATING;
}

double data_wrap(double value, enum kops_dtype dtype)
{
    const struct format *f = &formats[dtype];
    const double range = ldexp(1, (int)f->bits);

    if (f->kind != SIGNED && f->kind != UNSIGNED)
        return value;
    value -= floor(value / range) * range;
    return f->kind == SIGNED && value >= range / 2 ? value - range : value;
}

/* The bits of a finite number that is not negative, to nearest even; one that is too large becomes the largest
 * exponent's first: infinity, where there is one. */
static uint64_t encode(double value, const struct format *f)
{
    const uint64_t top = exponent_max(f), largest = (top << f->mantissa) | ((1U << f->mantissa) - 2);
    int exponent;
    uint64_t bits;

    if (value == 0)
        return 0;
    frexp(value, &exponent); /* value = m 2^exponent, m from 0.5 on */
    exponent += (int)f->bias - 1;
    if (exponent < 1)
        exponent = 1; /* subnormal numbers have this exponent, too */
    if (exponent > (int)top)
        return f->finite ? largest : top << f->mantissa;
    bits = (uint64_t)nearbyint(ldexp(value, (int)f->bias + (int)f->mantissa - exponent));
    bits += (uint64_t)(exponent - 1) << f->mantissa; /* the leading bit adds 1, and a carry moves on */
    if (f->finite)
        return bits < largest ? bits : largest;
    return bits < top << f->mantissa ? bits : top << f->mantissa;
}

static uint64_t encode_integer(double value, const struct format *f)
{
    const bool negative = f->kind == SIGNED;
    const double limit = ldexp(1, (int)f->bits - negative);

    if (f->kind == BOOLEAN)
        return value != 0;
    if (isnan(value))
        return 0;
    if (value >= limit)
        return (negative ? UINT64_MAX >> 1 : UINT64_MAX) >> (64 - f->bits);
    if (value < (negative ? -limit : 0))
        return negative ? UINT64_C(1) << (f->bits - 1) : 0;
    return value < 0 ? (uint64_t)(int64_t)value : (uint64_t)value;
}

void data_set(void *data, size_t index, enum kops_dtype dtype, double value)
{
    const struct format *f = &formats[dtype];
    uint64_t bits;

    if (f->kind != FLOATING) {
        bits = encode_integer(value, f);
    } else if (f->bits == 64) {
        memcpy(&bits, &value, sizeof(bits));
    } else {
        const uint64_t top = (uint64_t)exponent_max(f) << f->mantissa, all = (UINT64_C(1) << f->mantissa) - 1;

        bits = isnan(value) ? top | all : isinf(value) ? (f->finite ? top | all : top) : encode(fabs(value), f);
        bits |= (uint64_t)(signbit(value) != 0) << (f->bits - 1);
    }
    put(data, index, f, bits);
}

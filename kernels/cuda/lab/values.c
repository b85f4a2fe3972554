/* Conversions between the dtypes and double, in portable C. */
#include "values.h"

#include <math.h>
#include <string.h>

/* x rounded to `bits` significant bits, with the spacing of numbers below 2^min_exponent kept; nearest even. */
static double round_to(double x, int bits, int min_exponent)
{
    int exponent;

    if (x == 0 || !isfinite(x))
        return x;
    frexp(x, &exponent);
    if (exponent < min_exponent)
        exponent = min_exponent;
    return ldexp(rint(ldexp(x, bits - exponent)), exponent - bits);
}

static uint16_t to_f16(float x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double y = fabs(round_to(x, 11, -13));
    int exponent;
    double fraction;

    if (isnan(x))
        return 0x7fff;
    if (y > 65504)
        return sign | 0x7c00;
    if (y < ldexp(1, -14))
        return sign | (uint16_t)ldexp(y, 24);
    fraction = frexp(y, &exponent);
    return sign | (uint16_t)((exponent + 14) << 10) | (uint16_t)(ldexp(fraction, 11) - 1024);
}

static double from_f16(uint16_t h)
{
    const double sign = h & 0x8000 ? -1 : 1;
    const int exponent = h >> 10 & 31, fraction = h & 1023;

    if (exponent == 31)
        return fraction ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, -24);
    return sign * ldexp(fraction + 1024, exponent - 25);
}

static uint16_t to_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    if (isnan(x))
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double from_bf16(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static double from_e4m3(uint8_t b)
{
    const double sign = b & 0x80 ? -1 : 1;
    const int exponent = b >> 3 & 15, fraction = b & 7;

    if (exponent == 15 && fraction == 7)
        return NAN;
    return sign * (exponent ? ldexp(fraction + 8, exponent - 10) : ldexp(fraction, -9));
}

uint64_t value_bits(enum dtype dtype, const unsigned char *array, size_t i)
{
    const size_t size = dtype_size(dtype);
    uint64_t bits = 0;

    memcpy(&bits, array + i * size, size);
    return bits;
}

void value_set_bits(enum dtype dtype, unsigned char *array, size_t i, uint64_t bits)
{
    const size_t size = dtype_size(dtype);

    memcpy(array + i * size, &bits, size);
}

double value_get(enum dtype dtype, const unsigned char *array, size_t i)
{
    uint16_t h;
    float f;
    double d;

    switch (dtype) {
    case DTYPE_F32:
        memcpy(&f, array + i * sizeof(f), sizeof(f));
        return f;
    case DTYPE_F64:
        memcpy(&d, array + i * sizeof(d), sizeof(d));
        return d;
    case DTYPE_F16:
        memcpy(&h, array + i * sizeof(h), sizeof(h));
        return from_f16(h);
    case DTYPE_BF16:
        memcpy(&h, array + i * sizeof(h), sizeof(h));
        return from_bf16(h);
    case DTYPE_F8_E4M3:
        return from_e4m3(array[i]);
    case DTYPE_F8_E5M2:
        return from_f16((uint16_t)(array[i] << 8));
    default:
        break;
    }
    return (double)value_bits(dtype, array, i);
}

void value_set(enum dtype dtype, unsigned char *array, size_t i, double value)
{
    const float f = (float)value;
    uint16_t h;

    switch (dtype) {
    case DTYPE_F32:
        memcpy(array + i * sizeof(f), &f, sizeof(f));
        break;
    case DTYPE_F64:
        memcpy(array + i * sizeof(value), &value, sizeof(value));
        break;
    case DTYPE_F16:
        h = to_f16(f);
        memcpy(array + i * sizeof(h), &h, sizeof(h));
        break;
    case DTYPE_BF16:
        h = to_bf16(f);
        memcpy(array + i * sizeof(h), &h, sizeof(h));
        break;
    default:
        value_set_bits(dtype, array, i, (uint64_t)value);
    }
}

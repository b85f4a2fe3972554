/* Conversions between the 16-bit dtypes and float, rounding to nearest even, and from the 8-bit ones. */
#include <math.h>
#include <string.h>

#include "standin.h"

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

float half_to_float(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;

    if (exponent == 31)
        return float_of(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) { /* zero or subnormal: fraction · 2^-24, exact in float */
        float value = (float)fraction * 0x1p-24f;

        return sign ? -value : value;
    }
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t float_to_half(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;

    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits */
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000));
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (magnitude - 0x38000000) >> 13);
}

float bfloat_to_float(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

uint16_t float_to_bfloat(float value)
{
    uint32_t bits = bits_of(value);

    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float e5m2_to_float(uint8_t bits)
{
    return half_to_float((uint16_t)(bits << 8));
}

float e4m3_to_float(uint8_t bits)
{
    const uint32_t magnitude = bits & 0x7f;
    float value;

    if (magnitude == 0x7f)
        value = float_of(0x7fc00000);
    else if (magnitude < 8)
        value = (float)magnitude * 0x1p-9f;
    else
        value =
            float_of((magnitude << 20) + ((127u - 7) << 23)); /* the exponent with float's bias in place of its own */
    return bits & 0x80 ? -value : value;
}

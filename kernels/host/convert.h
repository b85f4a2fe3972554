/* Conversions of single values: f16 and bf16 to and from f32, and f8 to f32. Vectorised code must give equal results.
 * Conversions to f32 are exact. Conversions from f32 round to nearest even; overflow gives infinity; NaNs stay NaNs and
 * become quiet. The code uses integer arithmetic and one f32 addition, so it compiles for any target. */
#ifndef KOPS_HOST_CONVERT_H
#define KOPS_HOST_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static inline float bits_float(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000U) << 16, magnitude = h & 0x7fffU;

    if (magnitude < 0x0400U) /* zero, subnormal: a multiple of 2^-24 */
        return bits_float(sign | float_bits((float)(int32_t)magnitude * 0x1p-24f));
    if (magnitude < 0x7c00U)
        return bits_float(sign | ((magnitude << 13) + (112U << 23)));
    return bits_float(sign | 0x7f800000U | (magnitude << 13 & 0x7fffffU) | (magnitude > 0x7c00U ? 0x400000U : 0));
}

static inline uint16_t f32_to_f16(float x)
{
    uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000U, magnitude = bits & 0x7fffffffU;

    if (magnitude > 0x7f800000U)
        return (uint16_t)(sign | 0x7e00U | (magnitude >> 13 & 0x3ffU));
    if (magnitude >= 0x47800000U) /* 65536 and more */
        return (uint16_t)(sign | 0x7c00U);
    if (magnitude < 0x38800000U) /* below 2^-14: adding 0.5 leaves multiples of 2^-24, rounded, in the mantissa */
        return (uint16_t)(sign | (float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000U));
    magnitude -= 112U << 23;
    return (uint16_t)(sign | (magnitude + 0xfffU + (magnitude >> 13 & 1U)) >> 13);
}

static inline float bf16_to_f32(uint16_t h)
{
    return bits_float((uint32_t)h << 16);
}

static inline uint16_t f32_to_bf16(float x)
{
    uint32_t bits = float_bits(x);

    if ((bits & 0x7fffffffU) > 0x7f800000U)
        return (uint16_t)(bits >> 16 | 0x40U);
    return (uint16_t)((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

/* e5m2 is the upper half of f16. e4m3 has no infinities, and one NaN of each sign. */
static inline float e5m2_to_f32(uint8_t b)
{
    return f16_to_f32((uint16_t)(b << 8));
}

static inline float e4m3_to_f32(uint8_t b)
{
    uint32_t sign = (uint32_t)(b & 0x80U) << 24, magnitude = b & 0x7fU;

    if (magnitude == 0x7fU)
        return bits_float(sign | 0x7fc00000U);
    if (magnitude < 0x08U) /* zero, subnormal: a multiple of 2^-9 */
        return bits_float(sign | float_bits((float)(int32_t)magnitude * 0x1p-9f));
    return bits_float(sign | ((magnitude << 20) + (120U << 23)));
}

#endif

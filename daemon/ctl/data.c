#include "data.h"

#include <math.h>
#include <string.h>

/* How each dtype lays out its bits. */
static const struct format {
    unsigned mantissa, bias, bits;
} formats[] = {
    [KOPS_F32] = {23, 127, 32},
    [KOPS_F64] = {52, 1023, 64},
    [KOPS_F16] = {10, 15, 16},
    [KOPS_BF16] = {7, 127, 16},
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

    return (random >> 57 & 1) << (f->bits - 1) | exponent << f->mantissa | mantissa;
}

void data_fill(void *data, size_t count, enum kops_dtype dtype, uint64_t seed)
{
    const struct format *f = &formats[dtype];

    for (size_t i = 0; i < count; i++) {
        uint64_t bits = random_bits(f, &seed);

        /* Little-endian: the low bytes are the element. */
        memcpy((char *)data + i * (f->bits / 8), &bits, f->bits / 8);
    }
}

static double decode_half(uint16_t bits, const struct format *f)
{
    const unsigned exponent_max = (1U << (15 - f->mantissa)) - 1;
    const unsigned exponent = bits >> f->mantissa & exponent_max, mantissa = bits & ((1U << f->mantissa) - 1);
    double value;

    if (exponent == exponent_max)
        value = mantissa ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - (int)f->bias - (int)f->mantissa);
    else
        value = ldexp(mantissa | 1U << f->mantissa, (int)exponent - (int)f->bias - (int)f->mantissa);
    return bits >> 15 ? -value : value;
}

double data_get(const void *data, size_t index, enum kops_dtype dtype)
{
    float single;
    double value;
    uint16_t half;

    switch (dtype) {
    case KOPS_F32:
        memcpy(&single, (const char *)data + index * sizeof(single), sizeof(single));
        return (double)single;
    case KOPS_F64:
        memcpy(&value, (const char *)data + index * sizeof(value), sizeof(value));
        return value;
    case KOPS_F16:
    case KOPS_BF16:
        memcpy(&half, (const char *)data + index * sizeof(half), sizeof(half));
        return decode_half(half, &formats[dtype]);
    default:
        break;
    }
    return (double)NAN;
}

// 16-bit floating point: conversions with rounding to nearest even. Arithmetic is done in float and rounded once; a
// float has more than twice their digits, so that sums, products, quotients and roots are those of exact arithmetic.
#ifndef KOPS_HOST_HALF_H
#define KOPS_HOST_HALF_H

KOPS_HOST unsigned short kops_host_half_bits(float value)
{
    unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (unsigned short)0x7fff;
    if (magnitude >= 0x477ff000u) // rounds to more than the largest
        return (unsigned short)(sign | 0x7c00u);
    if (magnitude < 0x33000001u) // at most half of the smallest
        return (unsigned short)sign;
    int exponent = int(magnitude >> 23) - 127;
    unsigned digits = (magnitude & 0x7fffffu) | 0x800000u;
    unsigned drop = exponent < -14 ? unsigned(-1 - exponent) : 13u; // digits that do not fit
    unsigned kept = digits >> drop, rest = digits & ((1u << drop) - 1), middle = 1u << (drop - 1);
    kept += rest > middle || (rest == middle && (kept & 1u));
    // A carry out of the digits counts as one more in the exponent.
    unsigned base = exponent < -14 ? 0u : unsigned(exponent + 14) << 10;
    return (unsigned short)(sign | (base + kept));
}

KOPS_HOST float kops_host_half_value(unsigned short bits)
{
    unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, digits = bits & 0x3ffu;
    if (exponent == 31)
        return __uint_as_float(sign | 0x7f800000u | digits << 13);
    if (exponent)
        return __uint_as_float(sign | (exponent + 112) << 23 | digits << 13);
    float tiny = float(digits) * 5.9604644775390625e-8f;
    return sign ? -tiny : tiny;
}

KOPS_HOST unsigned short kops_host_bfloat_bits(float value)
{
    unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (unsigned short)0x7fff;
    return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

KOPS_HOST float kops_host_bfloat_value(unsigned short bits)
{
    return __uint_as_float(unsigned(bits) << 16);
}

// Rounding a double to float before the last rounding must not make a tie of what is none: the last digit of the float
// is set if anything was cut off.
KOPS_HOST float kops_host_odd(double value)
{
    float nearest = float(value);
    if (double(nearest) == value || value != value || __builtin_isinf(nearest))
        return nearest;
    unsigned bits = __float_as_uint(nearest);
    if (__builtin_fabs(double(nearest)) > __builtin_fabs(value))
        bits--;
    return __uint_as_float(bits | 1u);
}

// The members that both types have. BITS and VALUE convert from and to float.
#define KOPS_HOST_SMALL(NAME, RAW, BITS, VALUE)                                                                        \
    struct RAW {                                                                                                       \
        unsigned short x;                                                                                              \
    };                                                                                                                 \
    struct NAME {                                                                                                      \
        unsigned short __x;                                                                                            \
                                                                                                                       \
        NAME() = default;                                                                                              \
        KOPS_HOST NAME(RAW raw) : __x(raw.x)                                                                           \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST NAME(float v) : __x(BITS(v))                                                                         \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST NAME(double v) : __x(BITS(kops_host_odd(v)))                                                         \
        {                                                                                                              \
        }                                                                                                              \
        template <typename I, typename std::enable_if<std::is_integral<I>::value, int>::type = 0>                      \
        KOPS_HOST NAME(I v) : __x(BITS(kops_host_odd(double(v))))                                                      \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST operator float() const                                                                               \
        {                                                                                                              \
            return VALUE(__x);                                                                                         \
        }                                                                                                              \
        KOPS_HOST operator RAW() const                                                                                 \
        {                                                                                                              \
            return {__x};                                                                                              \
        }                                                                                                              \
    };                                                                                                                 \
    KOPS_HOST_SMALL_OPERATOR(NAME, +)                                                                                  \
    KOPS_HOST_SMALL_OPERATOR(NAME, -)                                                                                  \
    KOPS_HOST_SMALL_OPERATOR(NAME, *)                                                                                  \
    KOPS_HOST_SMALL_OPERATOR(NAME, /)                                                                                  \
    KOPS_HOST_SMALL_COMPARISON(NAME, ==)                                                                               \
    KOPS_HOST_SMALL_COMPARISON(NAME, !=)                                                                               \
    KOPS_HOST_SMALL_COMPARISON(NAME, <)                                                                                \
    KOPS_HOST_SMALL_COMPARISON(NAME, >)                                                                                \
    KOPS_HOST_SMALL_COMPARISON(NAME, <=)                                                                               \
    KOPS_HOST_SMALL_COMPARISON(NAME, >=)                                                                               \
    KOPS_HOST NAME operator-(NAME a)                                                                                   \
    {                                                                                                                  \
        a.__x ^= 0x8000u;                                                                                              \
        return a;                                                                                                      \
    }                                                                                                                  \
    KOPS_HOST NAME operator+(NAME a)                                                                                   \
    {                                                                                                                  \
        return a;                                                                                                      \
    }

#define KOPS_HOST_SMALL_OPERATOR(NAME, OP)                                                                             \
    KOPS_HOST NAME operator OP(NAME a, NAME b)                                                                         \
    {                                                                                                                  \
        return NAME(float(a) OP float(b));                                                                             \
    }                                                                                                                  \
    KOPS_HOST NAME &operator OP##=(NAME &a, NAME b)                                                                    \
    {                                                                                                                  \
        return a = NAME(float(a) OP float(b));                                                                         \
    }

#define KOPS_HOST_SMALL_COMPARISON(NAME, OP)                                                                           \
    KOPS_HOST bool operator OP(NAME a, NAME b)                                                                         \
    {                                                                                                                  \
        return float(a) OP float(b);                                                                                   \
    }

#endif

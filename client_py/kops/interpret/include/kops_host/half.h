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

// Families of functions that __half and __nv_bfloat16 share: H is the type, H2 a pair of it.

#define KOPS_HOST_PAIR(H, H2, RAW2)                                                                                    \
    struct alignas(4) RAW2 {                                                                                           \
        unsigned short x, y;                                                                                           \
    };                                                                                                                 \
    struct alignas(4) H2 {                                                                                             \
        H x, y;                                                                                                        \
                                                                                                                       \
        H2() = default;                                                                                                \
        KOPS_HOST H2(H a, H b) : x(a), y(b)                                                                            \
        {                                                                                                              \
        }                                                                                                              \
    };                                                                                                                 \
    KOPS_HOST_PAIR_OPERATOR(H2, +)                                                                                     \
    KOPS_HOST_PAIR_OPERATOR(H2, -)                                                                                     \
    KOPS_HOST_PAIR_OPERATOR(H2, *)                                                                                     \
    KOPS_HOST_PAIR_OPERATOR(H2, /)                                                                                     \
    KOPS_HOST H2 operator-(H2 a)                                                                                       \
    {                                                                                                                  \
        return H2(-a.x, -a.y);                                                                                         \
    }                                                                                                                  \
    KOPS_HOST bool operator==(H2 a, H2 b)                                                                              \
    {                                                                                                                  \
        return a.x == b.x && a.y == b.y;                                                                               \
    }                                                                                                                  \
    KOPS_HOST bool operator!=(H2 a, H2 b)                                                                              \
    {                                                                                                                  \
        return !(a == b);                                                                                              \
    }

#define KOPS_HOST_PAIR_OPERATOR(H2, OP)                                                                                \
    KOPS_HOST H2 operator OP(H2 a, H2 b)                                                                               \
    {                                                                                                                  \
        return H2(a.x OP b.x, a.y OP b.y);                                                                             \
    }                                                                                                                  \
    KOPS_HOST H2 &operator OP##=(H2 &a, H2 b)                                                                          \
    {                                                                                                                  \
        return a = a OP b;                                                                                             \
    }

#define KOPS_HOST_SMALL_UNARY(H, H2, NAME, VALUE)                                                                      \
    KOPS_HOST H h##NAME(H a)                                                                                           \
    {                                                                                                                  \
        double x = double(float(a));                                                                                   \
        return H(double(VALUE));                                                                                       \
    }                                                                                                                  \
    KOPS_HOST H2 h2##NAME(H2 a)                                                                                        \
    {                                                                                                                  \
        return H2(h##NAME(a.x), h##NAME(a.y));                                                                         \
    }

#define KOPS_HOST_SMALL_BINARY(H, H2, NAME, SUFFIX, VALUE)                                                             \
    KOPS_HOST H NAME##SUFFIX(H a, H b)                                                                                 \
    {                                                                                                                  \
        return VALUE;                                                                                                  \
    }                                                                                                                  \
    KOPS_HOST H2 NAME##2##SUFFIX(H2 a, H2 b)                                                                           \
    {                                                                                                                  \
        return H2(NAME##SUFFIX(a.x, b.x), NAME##SUFFIX(a.y, b.y));                                                     \
    }

// A comparison in all its forms: of two, of pairs as numbers, masks and one answer. VALUE is what a NaN gives.
#define KOPS_HOST_SMALL_COMPARE_AS(H, H2, NAME, OP, VALUE)                                                             \
    KOPS_HOST bool __h##NAME(H a, H b)                                                                                 \
    {                                                                                                                  \
        return __hisnan(a) || __hisnan(b) ? VALUE : a OP b;                                                            \
    }                                                                                                                  \
    KOPS_HOST H2 __h##NAME##2(H2 a, H2 b)                                                                              \
    {                                                                                                                  \
        return H2(H(__h##NAME(a.x, b.x) ? 1.0f : 0.0f), H(__h##NAME(a.y, b.y) ? 1.0f : 0.0f));                         \
    }                                                                                                                  \
    KOPS_HOST unsigned __h##NAME##2_mask(H2 a, H2 b)                                                                   \
    {                                                                                                                  \
        return (__h##NAME(a.x, b.x) ? 0xffffu : 0u) | (__h##NAME(a.y, b.y) ? 0xffff0000u : 0u);                        \
    }                                                                                                                  \
    KOPS_HOST bool __hb##NAME##2(H2 a, H2 b)                                                                           \
    {                                                                                                                  \
        return __h##NAME(a.x, b.x) && __h##NAME(a.y, b.y);                                                             \
    }
#define KOPS_HOST_SMALL_COMPARE(H, H2, NAME, OP)                                                                       \
    KOPS_HOST_SMALL_COMPARE_AS(H, H2, NAME, OP, false)                                                                 \
    KOPS_HOST_SMALL_COMPARE_AS(H, H2, NAME##u, OP, true)

// All functions that have one name for both types.
#define KOPS_HOST_SMALL_FUNCTIONS(H, H2)                                                                               \
    KOPS_HOST_SMALL_UNARY(H, H2, sqrt, sqrt(x))                                                                        \
    KOPS_HOST_SMALL_UNARY(H, H2, rsqrt, 1.0 / sqrt(x))                                                                 \
    KOPS_HOST_SMALL_UNARY(H, H2, rcp, 1.0 / x)                                                                         \
    KOPS_HOST_SMALL_UNARY(H, H2, exp, exp(x))                                                                          \
    KOPS_HOST_SMALL_UNARY(H, H2, exp2, exp2(x))                                                                        \
    KOPS_HOST_SMALL_UNARY(H, H2, exp10, pow(10.0, x))                                                                  \
    KOPS_HOST_SMALL_UNARY(H, H2, log, log(x))                                                                          \
    KOPS_HOST_SMALL_UNARY(H, H2, log2, log2(x))                                                                        \
    KOPS_HOST_SMALL_UNARY(H, H2, log10, log10(x))                                                                      \
    KOPS_HOST_SMALL_UNARY(H, H2, sin, sin(x))                                                                          \
    KOPS_HOST_SMALL_UNARY(H, H2, cos, cos(x))                                                                          \
    KOPS_HOST_SMALL_UNARY(H, H2, tanh, tanh(x))                                                                        \
    KOPS_HOST_SMALL_UNARY(H, H2, tanh_approx, tanh(x))                                                                 \
    KOPS_HOST_SMALL_UNARY(H, H2, floor, floor(x))                                                                      \
    KOPS_HOST_SMALL_UNARY(H, H2, ceil, ceil(x))                                                                        \
    KOPS_HOST_SMALL_UNARY(H, H2, trunc, trunc(x))                                                                      \
    KOPS_HOST_SMALL_UNARY(H, H2, rint, nearbyint(x))                                                                   \
    KOPS_HOST bool __hisnan(H a)                                                                                       \
    {                                                                                                                  \
        return float(a) != float(a);                                                                                   \
    }                                                                                                                  \
    KOPS_HOST H2 __hisnan2(H2 a)                                                                                       \
    {                                                                                                                  \
        return H2(H(__hisnan(a.x) ? 1.0f : 0.0f), H(__hisnan(a.y) ? 1.0f : 0.0f));                                     \
    }                                                                                                                  \
    KOPS_HOST_SMALL_COMPARE(H, H2, eq, ==)                                                                             \
    KOPS_HOST_SMALL_COMPARE(H, H2, ne, !=)                                                                             \
    KOPS_HOST_SMALL_COMPARE(H, H2, lt, <)                                                                              \
    KOPS_HOST_SMALL_COMPARE(H, H2, gt, >)                                                                              \
    KOPS_HOST_SMALL_COMPARE(H, H2, le, <=)                                                                             \
    KOPS_HOST_SMALL_COMPARE(H, H2, ge, >=)                                                                             \
    KOPS_HOST_SMALL_BINARY(H, H2, __hmin, _nan,                                                                        \
                           __hisnan(a) || __hisnan(b) ? H(__builtin_nanf("")) : H(fminf(float(a), float(b))))          \
    KOPS_HOST_SMALL_BINARY(H, H2, __hmax, _nan,                                                                        \
                           __hisnan(a) || __hisnan(b) ? H(__builtin_nanf("")) : H(fmaxf(float(a), float(b))))          \
    KOPS_HOST_SMALL_BINARY(H, H2, __hadd, , a + b)                                                                     \
    KOPS_HOST_SMALL_BINARY(H, H2, __hsub, , a - b)                                                                     \
    KOPS_HOST_SMALL_BINARY(H, H2, __hmul, , a *b)                                                                      \
    KOPS_HOST_SMALL_BINARY(H, H2, __hdiv, , a / b)                                                                     \
    KOPS_HOST_SMALL_BINARY(H, H2, __hadd, _rn, a + b)                                                                  \
    KOPS_HOST_SMALL_BINARY(H, H2, __hsub, _rn, a - b)                                                                  \
    KOPS_HOST_SMALL_BINARY(H, H2, __hmul, _rn, a *b)                                                                   \
    KOPS_HOST_SMALL_BINARY(H, H2, __hmin, , H(fminf(float(a), float(b))))                                              \
    KOPS_HOST_SMALL_BINARY(H, H2, __hmax, , H(fmaxf(float(a), float(b))))                                              \
    KOPS_HOST_SMALL_BINARY(H, H2, __hadd, _sat, H(__saturatef(float(a) + float(b))))                                   \
    KOPS_HOST_SMALL_BINARY(H, H2, __hmul, _sat, H(__saturatef(float(a) * float(b))))                                   \
    KOPS_HOST_SMALL_BINARY(H, H2, __hsub, _sat, H(__saturatef(float(a) - float(b))))                                   \
    KOPS_HOST H __hfma(H a, H b, H c)                                                                                  \
    {                                                                                                                  \
        return H(double(float(a)) * double(float(b)) + double(float(c)));                                              \
    }                                                                                                                  \
    KOPS_HOST H2 __hfma2(H2 a, H2 b, H2 c)                                                                             \
    {                                                                                                                  \
        return H2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));                                                       \
    }                                                                                                                  \
    KOPS_HOST H __hfma_relu(H a, H b, H c)                                                                             \
    {                                                                                                                  \
        H result = __hfma(a, b, c);                                                                                    \
        return float(result) < 0.0f ? H(0.0f) : result;                                                                \
    }                                                                                                                  \
    KOPS_HOST H __hfma_sat(H a, H b, H c)                                                                              \
    {                                                                                                                  \
        return H(__saturatef(float(__hfma(a, b, c))));                                                                 \
    }                                                                                                                  \
    KOPS_HOST H2 __hfma2_relu(H2 a, H2 b, H2 c)                                                                        \
    {                                                                                                                  \
        return H2(__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y));                                             \
    }                                                                                                                  \
    KOPS_HOST H2 __hfma2_sat(H2 a, H2 b, H2 c)                                                                         \
    {                                                                                                                  \
        return H2(__hfma_sat(a.x, b.x, c.x), __hfma_sat(a.y, b.y, c.y));                                               \
    }                                                                                                                  \
    KOPS_HOST H2 __hcmadd(H2 a, H2 b, H2 c) /* for complex numbers */                                                  \
    {                                                                                                                  \
        return H2(__hfma(-a.y, b.y, __hfma(a.x, b.x, c.x)), __hfma(a.y, b.x, __hfma(a.x, b.y, c.y)));                  \
    }                                                                                                                  \
    KOPS_HOST H2 __h2div(H2 a, H2 b)                                                                                   \
    {                                                                                                                  \
        return a / b;                                                                                                  \
    }                                                                                                                  \
    KOPS_HOST H __hneg(H a)                                                                                            \
    {                                                                                                                  \
        return -a;                                                                                                     \
    }                                                                                                                  \
    KOPS_HOST H2 __hneg2(H2 a)                                                                                         \
    {                                                                                                                  \
        return -a;                                                                                                     \
    }                                                                                                                  \
    KOPS_HOST H __habs(H a)                                                                                            \
    {                                                                                                                  \
        a.__x &= 0x7fffu;                                                                                              \
        return a;                                                                                                      \
    }                                                                                                                  \
    KOPS_HOST H2 __habs2(H2 a)                                                                                         \
    {                                                                                                                  \
        return H2(__habs(a.x), __habs(a.y));                                                                           \
    }                                                                                                                  \
    KOPS_HOST int __hisinf(H a)                                                                                        \
    {                                                                                                                  \
        return __builtin_isinf(float(a)) ? (float(a) > 0 ? 1 : -1) : 0;                                                \
    }                                                                                                                  \
    KOPS_HOST float __low2float(H2 a)                                                                                  \
    {                                                                                                                  \
        return a.x;                                                                                                    \
    }                                                                                                                  \
    KOPS_HOST float __high2float(H2 a)                                                                                 \
    {                                                                                                                  \
        return a.y;                                                                                                    \
    }                                                                                                                  \
    KOPS_HOST H2 __lowhigh2highlow(H2 a)                                                                               \
    {                                                                                                                  \
        return H2(a.y, a.x);                                                                                           \
    }

// Conversions with a direction of rounding. `nearest` is that to the nearest; its neighbour is one step of its bits.
enum kops_host_direction { KOPS_HOST_TO_ZERO, KOPS_HOST_DOWN, KOPS_HOST_UP };

template <typename H> KOPS_HOST H kops_host_directed(double value, kops_host_direction direction)
{
    H nearest(value);
    double is = double(float(nearest));
    bool above = is > value, below = is < value, negative = value < 0;
    if (!(direction == KOPS_HOST_TO_ZERO ? (negative ? below : above) : direction == KOPS_HOST_DOWN ? above : below))
        return nearest;
    // Towards zero where the rounding was away from it, else away from it.
    bool shrinks = direction == KOPS_HOST_TO_ZERO || (direction == KOPS_HOST_UP) == negative;
    nearest.__x = (unsigned short)(shrinks ? nearest.__x - 1u : nearest.__x + 1u);
    return nearest;
}

// A double for the last rounding: its last digit is set if anything of the integer was cut off.
template <typename T> KOPS_HOST double kops_host_for_rounding(T value)
{
    double nearest = double(value);
    if ((long double)nearest == (long double)value || sizeof(T) < 8)
        return nearest;
    double below = (long double)nearest > (long double)value
                       ? __longlong_as_double(__double_as_longlong(nearest) - (nearest > 0 ? 1 : -1))
                       : nearest;
    return __longlong_as_double(__double_as_longlong(below) | 1);
}

#define KOPS_HOST_SMALL_DIRECTED(H, NAME, T)                                                                           \
    KOPS_HOST H NAME##_rz(T x)                                                                                         \
    {                                                                                                                  \
        return kops_host_directed<H>(kops_host_for_rounding(x), KOPS_HOST_TO_ZERO);                                    \
    }                                                                                                                  \
    KOPS_HOST H NAME##_rd(T x)                                                                                         \
    {                                                                                                                  \
        return kops_host_directed<H>(kops_host_for_rounding(x), KOPS_HOST_DOWN);                                       \
    }                                                                                                                  \
    KOPS_HOST H NAME##_ru(T x)                                                                                         \
    {                                                                                                                  \
        return kops_host_directed<H>(kops_host_for_rounding(x), KOPS_HOST_UP);                                         \
    }

#define KOPS_HOST_SMALL_TO_INTEGER(H, NAME, I)                                                                         \
    KOPS_HOST I NAME##_rn(H x)                                                                                         \
    {                                                                                                                  \
        return kops_host_integer<I>(nearbyint(double(float(x))));                                                      \
    }                                                                                                                  \
    KOPS_HOST I NAME##_rz(H x)                                                                                         \
    {                                                                                                                  \
        return kops_host_integer<I>(trunc(double(float(x))));                                                          \
    }                                                                                                                  \
    KOPS_HOST I NAME##_rd(H x)                                                                                         \
    {                                                                                                                  \
        return kops_host_integer<I>(floor(double(float(x))));                                                          \
    }                                                                                                                  \
    KOPS_HOST I NAME##_ru(H x)                                                                                         \
    {                                                                                                                  \
        return kops_host_integer<I>(ceil(double(float(x))));                                                           \
    }

#endif

// 8-bit floating point: e4m3 (no infinities, one NaN) and e5m2. Conversions round to nearest even; what is too large
// becomes the largest number (saturating, as the types' constructors do), or else NaN or infinity.
#ifndef KOPS_HOST_CUDA_FP8_H
#define KOPS_HOST_CUDA_FP8_H

#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

KOPS_HOST __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t saturate,
                                                    __nv_fp8_interpretation_t kind)
{
    const int digits = kind == __NV_E4M3 ? 3 : 2, bias = kind == __NV_E4M3 ? 7 : 15;
    const unsigned char largest = kind == __NV_E4M3 ? 0x7e : 0x7b;
    unsigned long long bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    unsigned char sign = (unsigned char)(bits >> 56 & 0x80u);
    if (x != x)
        return (__nv_fp8_storage_t)(sign | (kind == __NV_E4M3 ? 0x7fu : 0x7eu | (unsigned(bits >> 50) & 3u)));
    int exponent = int(bits >> 52 & 0x7ffu) - 1023;
    int step = (exponent < 1 - bias ? 1 - bias : exponent) - digits; // of the last digit
    // A power of two at most: both the quotient and the rounded number are exact.
    double scaled = exponent < -64 ? 0.0 : exponent > 64 ? 1e30 : nearbyint(__builtin_ldexp(__builtin_fabs(x), -step));
    unsigned code = largest + 1u;
    if (scaled < double(4 << digits)) {
        unsigned rounded = unsigned(scaled); // a carry out of the digits counts as one more in the exponent
        code = exponent < 1 - bias ? rounded : unsigned(exponent + bias - 1) * (1u << digits) + rounded;
    }
    if (code > largest)
        code = saturate == __NV_SATFINITE ? largest : kind == __NV_E4M3 ? 0x7fu : 0x7cu;
    return (__nv_fp8_storage_t)(sign | code);
}

KOPS_HOST __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturate, __nv_fp8_interpretation_t kind)
{
    return x != x ? (__nv_fp8_storage_t)0x7f : __nv_cvt_double_to_fp8(double(x), saturate, kind);
}

KOPS_HOST __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw x, __nv_saturation_t saturate,
                                                     __nv_fp8_interpretation_t kind)
{
    return __nv_cvt_float_to_fp8(float(__half(x)), saturate, kind);
}

KOPS_HOST __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw x, __nv_saturation_t saturate,
                                                         __nv_fp8_interpretation_t kind)
{
    return __nv_cvt_float_to_fp8(float(__nv_bfloat16(x)), saturate, kind);
}

KOPS_HOST __nv_fp8x2_storage_t kops_host_fp8_pair(__nv_fp8_storage_t low, __nv_fp8_storage_t high)
{
    return (__nv_fp8x2_storage_t)(low | high << 8);
}

#define KOPS_HOST_FP8_PAIR(NAME, T, ONE, X, Y)                                                                         \
    KOPS_HOST __nv_fp8x2_storage_t NAME(T v, __nv_saturation_t saturate, __nv_fp8_interpretation_t kind)               \
    {                                                                                                                  \
        return kops_host_fp8_pair(ONE(X, saturate, kind), ONE(Y, saturate, kind));                                     \
    }

KOPS_HOST_FP8_PAIR(__nv_cvt_double2_to_fp8x2, double2, __nv_cvt_double_to_fp8, v.x, v.y)
KOPS_HOST_FP8_PAIR(__nv_cvt_float2_to_fp8x2, float2, __nv_cvt_float_to_fp8, v.x, v.y)
KOPS_HOST_FP8_PAIR(__nv_cvt_halfraw2_to_fp8x2, __half2_raw, __nv_cvt_halfraw_to_fp8, __half_raw{v.x}, __half_raw{v.y})
KOPS_HOST_FP8_PAIR(__nv_cvt_bfloat16raw2_to_fp8x2, __nv_bfloat162_raw, __nv_cvt_bfloat16raw_to_fp8,
                   __nv_bfloat16_raw{v.x}, __nv_bfloat16_raw{v.y})

#undef KOPS_HOST_FP8_PAIR

KOPS_HOST __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind)
{
    unsigned sign = x & 0x80u, magnitude = x & 0x7fu;
    if (kind == __NV_E5M2) // a half without its last digits
        return {(unsigned short)(magnitude > 0x7cu ? 0x7fffu : sign << 8 | magnitude << 8)};
    if (magnitude == 0x7fu)
        return {0x7fff};
    float value = magnitude >= 8 ? __builtin_ldexpf(float(8 + (magnitude & 7u)), int(magnitude >> 3) - 10)
                                 : __builtin_ldexpf(float(magnitude), -9);
    return {kops_host_half_bits(sign ? -value : value)};
}

KOPS_HOST __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t kind)
{
    return {__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)(x & 0xffu), kind).x,
            __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)(x >> 8), kind).x};
}

#define KOPS_HOST_FP8(NAME, KIND)                                                                                      \
    struct NAME {                                                                                                      \
        __nv_fp8_storage_t __x;                                                                                        \
                                                                                                                       \
        NAME() = default;                                                                                              \
        KOPS_HOST explicit NAME(__half v) : __x(__nv_cvt_halfraw_to_fp8(__half_raw(v), __NV_SATFINITE, KIND))          \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST explicit NAME(__nv_bfloat16 v)                                                                       \
            : __x(__nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw(v), __NV_SATFINITE, KIND))                             \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST explicit NAME(float v) : __x(__nv_cvt_float_to_fp8(v, __NV_SATFINITE, KIND))                         \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST explicit NAME(double v) : __x(__nv_cvt_double_to_fp8(v, __NV_SATFINITE, KIND))                       \
        {                                                                                                              \
        }                                                                                                              \
        template <typename I, typename std::enable_if<std::is_integral<I>::value, int>::type = 0>                      \
        KOPS_HOST explicit NAME(I v) : __x(__nv_cvt_float_to_fp8(float(v), __NV_SATFINITE, KIND))                      \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST explicit operator __half() const                                                                     \
        {                                                                                                              \
            return __half(__nv_cvt_fp8_to_halfraw(__x, KIND));                                                         \
        }                                                                                                              \
        KOPS_HOST explicit operator float() const                                                                      \
        {                                                                                                              \
            return float(__half(__nv_cvt_fp8_to_halfraw(__x, KIND)));                                                  \
        }                                                                                                              \
        KOPS_HOST explicit operator __nv_bfloat16() const                                                              \
        {                                                                                                              \
            return __nv_bfloat16(float(*this));                                                                        \
        }                                                                                                              \
        KOPS_HOST explicit operator double() const                                                                     \
        {                                                                                                              \
            return double(float(*this));                                                                               \
        }                                                                                                              \
        KOPS_HOST explicit operator bool() const                                                                       \
        {                                                                                                              \
            return (__x & 0x7fu) != 0;                                                                                 \
        }                                                                                                              \
        template <typename I, typename std::enable_if<std::is_integral<I>::value, int>::type = 0>                      \
        KOPS_HOST explicit operator I() const                                                                          \
        {                                                                                                              \
            return kops_host_integer<I>(trunc(double(*this)));                                                         \
        }                                                                                                              \
    };

KOPS_HOST_FP8(__nv_fp8_e4m3, __NV_E4M3)
KOPS_HOST_FP8(__nv_fp8_e5m2, __NV_E5M2)

#undef KOPS_HOST_FP8

#define KOPS_HOST_FP8_LANES(ONE, TWO, FOUR, KIND)                                                                      \
    struct alignas(2) TWO {                                                                                            \
        __nv_fp8x2_storage_t __x;                                                                                      \
                                                                                                                       \
        TWO() = default;                                                                                               \
        KOPS_HOST explicit TWO(__half2 v) : __x(kops_host_fp8_pair(ONE(v.x).__x, ONE(v.y).__x))                        \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST explicit TWO(__nv_bfloat162 v) : __x(kops_host_fp8_pair(ONE(v.x).__x, ONE(v.y).__x))                 \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST explicit TWO(float2 v) : __x(kops_host_fp8_pair(ONE(v.x).__x, ONE(v.y).__x))                         \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST explicit TWO(double2 v) : __x(kops_host_fp8_pair(ONE(v.x).__x, ONE(v.y).__x))                        \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST explicit operator __half2() const                                                                    \
        {                                                                                                              \
            __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(__x, KIND);                                                   \
            return __half2(__half(__half_raw{raw.x}), __half(__half_raw{raw.y}));                                      \
        }                                                                                                              \
        KOPS_HOST explicit operator float2() const                                                                     \
        {                                                                                                              \
            __half2 both = __half2(*this);                                                                             \
            return {float(both.x), float(both.y)};                                                                     \
        }                                                                                                              \
    };                                                                                                                 \
    struct alignas(4) FOUR {                                                                                           \
        __nv_fp8x4_storage_t __x;                                                                                      \
                                                                                                                       \
        FOUR() = default;                                                                                              \
        KOPS_HOST explicit FOUR(__half2 low, __half2 high)                                                             \
            : __x(unsigned(TWO(low).__x) | unsigned(TWO(high).__x) << 16)                                              \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST explicit FOUR(__nv_bfloat162 low, __nv_bfloat162 high)                                               \
            : __x(unsigned(TWO(low).__x) | unsigned(TWO(high).__x) << 16)                                              \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST explicit FOUR(float4 v)                                                                              \
            : __x(unsigned(TWO(float2{v.x, v.y}).__x) | unsigned(TWO(float2{v.z, v.w}).__x) << 16)                     \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST explicit FOUR(double4 v)                                                                             \
            : __x(unsigned(TWO(double2{v.x, v.y}).__x) | unsigned(TWO(double2{v.z, v.w}).__x) << 16)                   \
        {                                                                                                              \
        }                                                                                                              \
        KOPS_HOST explicit operator float4() const                                                                     \
        {                                                                                                              \
            TWO low, high;                                                                                             \
            low.__x = (__nv_fp8x2_storage_t)(__x & 0xffffu);                                                           \
            high.__x = (__nv_fp8x2_storage_t)(__x >> 16);                                                              \
            float2 a = float2(low), b = float2(high);                                                                  \
            return {a.x, a.y, b.x, b.y};                                                                               \
        }                                                                                                              \
    };

KOPS_HOST_FP8_LANES(__nv_fp8_e4m3, __nv_fp8x2_e4m3, __nv_fp8x4_e4m3, __NV_E4M3)
KOPS_HOST_FP8_LANES(__nv_fp8_e5m2, __nv_fp8x2_e5m2, __nv_fp8x4_e5m2, __NV_E5M2)

#undef KOPS_HOST_FP8_LANES

#endif

// Floating-point types of 8 and 16 bits, CUDA's and torch's, and torch's complex type. Conversions round to the nearest
// value, ties to even, as the hardware does, and once: all go through double, which holds any value of the others.
#pragma once
#include <kops/vectors.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <ostream>
#include <type_traits>

namespace kops
{
// A floating-point format: bits of exponent and mantissa; whether its largest exponent stands for infinity; its NaN.
struct Format {
    int exponent, mantissa;
    bool infinity;
    uint32_t nan;
    constexpr int bias() const
    {
        return (1 << (exponent - 1)) - 1;
    }
    constexpr uint32_t sign() const
    {
        return 1u << (exponent + mantissa);
    }
    // Infinity, or NaN in a format without one.
    constexpr uint32_t overflow() const
    {
        return infinity ? ((1u << exponent) - 1) << mantissa : sign() - 1;
    }
};
constexpr Format HALF{5, 10, true, 0x7fff}, BFLOAT16{8, 7, true, 0x7fff}, E4M3{4, 3, false, 0x7f},
    E5M2{5, 2, true, 0x7f};

inline uint32_t to_bits(double value, Format format, bool saturate = false)
{
    if (std::isnan(value))
        return format.nan;
    uint32_t sign = std::signbit(value) ? format.sign() : 0;
    double magnitude = std::fabs(value);
    uint32_t largest = format.overflow() - 1;
    if (std::isinf(magnitude))
        return sign | (saturate ? largest : format.overflow());
    if (magnitude == 0)
        return sign;
    int exponent = std::ilogb(magnitude);
    if (exponent > format.bias() + 1)
        return sign | (saturate ? largest : format.overflow());
    int smallest = 1 - format.bias();
    if (exponent < smallest)
        exponent = smallest;
    // The mantissa as an integer. Its implicit bit adds 1 to the exponent, except in a subnormal number, where both are
    // absent.
    auto rounded = (uint32_t)std::nearbyint(std::ldexp(magnitude, format.mantissa - exponent));
    uint32_t bits = ((uint32_t)(exponent - smallest) << format.mantissa) + rounded;
    if (bits > largest)
        bits = saturate ? largest : format.overflow();
    return sign | bits;
}

inline double from_bits(uint32_t bits, Format format)
{
    uint32_t magnitude = bits & (format.sign() - 1), mantissa = magnitude & ((1u << format.mantissa) - 1);
    int exponent = (int)(magnitude >> format.mantissa);
    double value;
    if (format.infinity ? magnitude > format.overflow() : magnitude == format.overflow())
        value = std::numeric_limits<double>::quiet_NaN();
    else if (format.infinity && magnitude == format.overflow())
        value = std::numeric_limits<double>::infinity();
    else if (exponent == 0)
        value = std::ldexp(mantissa, 1 - format.bias() - format.mantissa);
    else
        value = std::ldexp(mantissa + (1u << format.mantissa), exponent - format.bias() - format.mantissa);
    return bits & format.sign() ? -value : value;
}
} // namespace kops

// ---- CUDA's types

struct __half_raw {
    unsigned short x;
};
struct __nv_bfloat16_raw {
    unsigned short x;
};

#define KOPS_SHORT_FLOAT(NAME, FORMAT)                                                                                 \
    struct NAME {                                                                                                      \
        unsigned short __x;                                                                                            \
        NAME() = default;                                                                                              \
        template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>                                          \
        NAME(T value) : __x((unsigned short)kops::to_bits((double)value, kops::FORMAT))                                \
        {                                                                                                              \
        }                                                                                                              \
        NAME(NAME##_raw raw) : __x(raw.x)                                                                              \
        {                                                                                                              \
        }                                                                                                              \
        operator NAME##_raw() const                                                                                    \
        {                                                                                                              \
            return {__x};                                                                                              \
        }                                                                                                              \
        operator float() const                                                                                         \
        {                                                                                                              \
            return (float)kops::from_bits(__x, kops::FORMAT);                                                          \
        }                                                                                                              \
    };                                                                                                                 \
    struct alignas(4) NAME##2                                                                                          \
    {                                                                                                                  \
        NAME x, y;                                                                                                     \
    };
KOPS_SHORT_FLOAT(__half, HALF)
KOPS_SHORT_FLOAT(__nv_bfloat16, BFLOAT16)
#undef KOPS_SHORT_FLOAT
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

// Conversions of a type, with the name that CUDA's function names have for it (A) and its pair (B).
#define KOPS_CONVERSIONS(TYPE, A, B)                                                                                   \
    inline TYPE __float2##A(float value)                                                                               \
    {                                                                                                                  \
        return value;                                                                                                  \
    }                                                                                                                  \
    inline TYPE __float2##A##_rn(float value)                                                                          \
    {                                                                                                                  \
        return value;                                                                                                  \
    }                                                                                                                  \
    inline TYPE __double2##A(double value)                                                                             \
    {                                                                                                                  \
        return value;                                                                                                  \
    }                                                                                                                  \
    inline TYPE __int2##A##_rn(int value)                                                                              \
    {                                                                                                                  \
        return value;                                                                                                  \
    }                                                                                                                  \
    inline float __##A##2float(TYPE value)                                                                             \
    {                                                                                                                  \
        return value;                                                                                                  \
    }                                                                                                                  \
    inline int __##A##2int_rz(TYPE value)                                                                              \
    {                                                                                                                  \
        return (int)(float)value;                                                                                      \
    }                                                                                                                  \
    inline unsigned short __##A##_as_ushort(TYPE value)                                                                \
    {                                                                                                                  \
        return value.__x;                                                                                              \
    }                                                                                                                  \
    inline TYPE __ushort_as_##A(unsigned short bits)                                                                   \
    {                                                                                                                  \
        TYPE value;                                                                                                    \
        value.__x = bits;                                                                                              \
        return value;                                                                                                  \
    }                                                                                                                  \
    inline TYPE##2 make_##B(TYPE x, TYPE y)                                                                            \
    {                                                                                                                  \
        return {x, y};                                                                                                 \
    }                                                                                                                  \
    inline TYPE##2 __floats2##B##_rn(float x, float y)                                                                 \
    {                                                                                                                  \
        return {x, y};                                                                                                 \
    }                                                                                                                  \
    inline TYPE##2 __float2##B##_rn(float value)                                                                       \
    {                                                                                                                  \
        return {value, value};                                                                                         \
    }                                                                                                                  \
    inline TYPE##2 __float22##B##_rn(float2 value)                                                                     \
    {                                                                                                                  \
        return {value.x, value.y};                                                                                     \
    }                                                                                                                  \
    inline float2 __##B##2float2(TYPE##2 value)                                                                        \
    {                                                                                                                  \
        return {value.x, value.y};                                                                                     \
    }                                                                                                                  \
    inline TYPE##2 __##A##2##B(TYPE value)                                                                             \
    {                                                                                                                  \
        return {value, value};                                                                                         \
    }                                                                                                                  \
    inline float __low2float(TYPE##2 value)                                                                            \
    {                                                                                                                  \
        return value.x;                                                                                                \
    }                                                                                                                  \
    inline float __high2float(TYPE##2 value)                                                                           \
    {                                                                                                                  \
        return value.y;                                                                                                \
    }
KOPS_CONVERSIONS(__half, half, half2)
KOPS_CONVERSIONS(__nv_bfloat16, bfloat16, bfloat162)
#undef KOPS_CONVERSIONS
typedef unsigned char __nv_fp8_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double value, __nv_saturation_t saturate,
                                                 __nv_fp8_interpretation_t kind)
{
    kops::Format format = kind == __NV_E4M3 ? kops::E4M3 : kops::E5M2;
    auto bits = (__nv_fp8_storage_t)kops::to_bits(value, format, saturate == __NV_SATFINITE);
    return bits;
}
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float value, __nv_saturation_t saturate, __nv_fp8_interpretation_t kind)
{
    return __nv_cvt_double_to_fp8(value, saturate, kind);
}

// The constructors saturate, as CUDA's do.
#define KOPS_FP8(NAME, FORMAT)                                                                                         \
    struct NAME {                                                                                                      \
        __nv_fp8_storage_t __x;                                                                                        \
        NAME() = default;                                                                                              \
        template <class T, class = std::enable_if_t<std::is_convertible_v<T, float>>>                                  \
        explicit NAME(T value) : __x((__nv_fp8_storage_t)kops::to_bits((double)value, kops::FORMAT, true))             \
        {                                                                                                              \
        }                                                                                                              \
        explicit operator float() const                                                                                \
        {                                                                                                              \
            return (float)kops::from_bits(__x, kops::FORMAT);                                                          \
        }                                                                                                              \
        explicit operator double() const                                                                               \
        {                                                                                                              \
            return kops::from_bits(__x, kops::FORMAT);                                                                 \
        }                                                                                                              \
    };
KOPS_FP8(__nv_fp8_e4m3, E4M3)
KOPS_FP8(__nv_fp8_e5m2, E5M2)
#undef KOPS_FP8
struct alignas(2) __nv_fp8x2_e4m3 {
    unsigned short __x;
};
struct alignas(4) __nv_fp8x4_e4m3 {
    unsigned __x;
};
struct alignas(2) __nv_fp8x2_e5m2 {
    unsigned short __x;
};
struct alignas(4) __nv_fp8x4_e5m2 {
    unsigned __x;
};

// ---- torch's types

namespace c10
{
// A type of torch with the bits in x. NAN_BITS is the NaN that torch's own conversion gives.
#define KOPS_FLOAT(NAME, BITS, FORMAT, NAN_BITS)                                                                       \
    struct alignas(sizeof(BITS)) NAME {                                                                                \
        BITS x;                                                                                                        \
        struct from_bits_t {                                                                                           \
        };                                                                                                             \
        static constexpr from_bits_t from_bits()                                                                       \
        {                                                                                                              \
            return {};                                                                                                 \
        }                                                                                                              \
        NAME() = default;                                                                                              \
        constexpr NAME(BITS bits, from_bits_t) : x(bits)                                                               \
        {                                                                                                              \
        }                                                                                                              \
        NAME(float value) : x(value != value ? (BITS)(NAN_BITS) : (BITS)kops::to_bits(value, kops::FORMAT))            \
        {                                                                                                              \
        }                                                                                                              \
        operator float() const                                                                                         \
        {                                                                                                              \
            return (float)kops::from_bits(x, kops::FORMAT);                                                            \
        }                                                                                                              \
        KOPS_FLOAT_##NAME                                                                                              \
    };                                                                                                                 \
    KOPS_ARITHMETIC(NAME)

#define KOPS_FROM_CUDA(NAME, CUDA)                                                                                     \
    NAME(const CUDA &value) : x(value.__x)                                                                             \
    {                                                                                                                  \
    }                                                                                                                  \
    operator CUDA() const                                                                                              \
    {                                                                                                                  \
        CUDA value;                                                                                                    \
        value.__x = x;                                                                                                 \
        return value;                                                                                                  \
    }
#define KOPS_FLOAT_Half          KOPS_FROM_CUDA(Half, __half)
#define KOPS_FLOAT_BFloat16      KOPS_FROM_CUDA(BFloat16, __nv_bfloat16)
#define KOPS_FLOAT_Float8_e4m3fn KOPS_FROM_CUDA(Float8_e4m3fn, __nv_fp8_e4m3)
#define KOPS_FLOAT_Float8_e5m2   KOPS_FROM_CUDA(Float8_e5m2, __nv_fp8_e5m2)

// Arithmetic as torch defines it: in the type with another such number and with an integer, which is converted first;
// in float and double with those.
#define KOPS_OPERATOR(NAME, OP)                                                                                        \
    inline NAME operator OP(NAME a, NAME b)                                                                            \
    {                                                                                                                  \
        return (float)a OP(float) b;                                                                                   \
    }                                                                                                                  \
    inline NAME &operator OP##=(NAME &a, NAME b)                                                                       \
    {                                                                                                                  \
        return a = a OP b;                                                                                             \
    }                                                                                                                  \
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>                                              \
    std::conditional_t<std::is_integral_v<T>, NAME, T> operator OP(NAME a, T b)                                        \
    {                                                                                                                  \
        using R = std::conditional_t<std::is_integral_v<T>, NAME, T>;                                                  \
        return (R)(float)a OP(R) b;                                                                                    \
    }                                                                                                                  \
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>                                              \
    std::conditional_t<std::is_integral_v<T>, NAME, T> operator OP(T a, NAME b)                                        \
    {                                                                                                                  \
        using R = std::conditional_t<std::is_integral_v<T>, NAME, T>;                                                  \
        return (R)a OP(R)(float) b;                                                                                    \
    }
#define KOPS_ARITHMETIC(NAME)                                                                                          \
    KOPS_OPERATOR(NAME, +)                                                                                             \
    KOPS_OPERATOR(NAME, -)                                                                                             \
    KOPS_OPERATOR(NAME, *)                                                                                             \
    KOPS_OPERATOR(NAME, /)                                                                                             \
    inline NAME operator-(NAME a)                                                                                      \
    {                                                                                                                  \
        return -(float)a;                                                                                              \
    }                                                                                                                  \
    inline std::ostream &operator<<(std::ostream &out, NAME a)                                                         \
    {                                                                                                                  \
        return out << (float)a;                                                                                        \
    }
KOPS_FLOAT(Half, uint16_t, HALF, std::signbit(value) ? 0xfe00 : 0x7e00)
KOPS_FLOAT(BFloat16, uint16_t, BFLOAT16, 0x7fc0)
KOPS_FLOAT(Float8_e4m3fn, uint8_t, E4M3, std::signbit(value) ? 0xff : 0x7f)
KOPS_FLOAT(Float8_e5m2, uint8_t, E5M2, std::signbit(value) ? 0xff : 0x7f)
#undef KOPS_FLOAT
#undef KOPS_FROM_CUDA
#undef KOPS_OPERATOR
#undef KOPS_ARITHMETIC

template <class T> struct alignas(sizeof(T) * 2) complex {
    using value_type = T;
    T real_, imag_;
    constexpr complex(T real = T(), T imag = T()) : real_(real), imag_(imag)
    {
    }
    template <class U> constexpr complex(const std::complex<U> &z) : real_(z.real()), imag_(z.imag())
    {
    }
    template <class U> explicit constexpr complex(const complex<U> &z) : real_(z.real()), imag_(z.imag())
    {
    }
    template <class U> explicit constexpr operator std::complex<U>() const
    {
        return {U(real_), U(imag_)};
    }
    constexpr T real() const
    {
        return real_;
    }
    constexpr T imag() const
    {
        return imag_;
    }
};
#define KOPS_OPERATOR(OP)                                                                                              \
    template <class T> complex<T> operator OP(complex<T> a, complex<T> b)                                              \
    {                                                                                                                  \
        return std::complex<T>(a) OP std::complex<T>(b);                                                               \
    }                                                                                                                  \
    template <class T> complex<T> operator OP(complex<T> a, T b)                                                       \
    {                                                                                                                  \
        return std::complex<T>(a) OP b;                                                                                \
    }                                                                                                                  \
    template <class T> complex<T> operator OP(T a, complex<T> b)                                                       \
    {                                                                                                                  \
        return a OP std::complex<T>(b);                                                                                \
    }                                                                                                                  \
    template <class T> complex<T> &operator OP##=(complex<T> &a, complex<T> b)                                         \
    {                                                                                                                  \
        return a = a OP b;                                                                                             \
    }
KOPS_OPERATOR(+)
KOPS_OPERATOR(-)
KOPS_OPERATOR(*)
KOPS_OPERATOR(/)
#undef KOPS_OPERATOR
template <class T> constexpr bool operator==(complex<T> a, complex<T> b)
{
    return a.real() == b.real() && a.imag() == b.imag();
}
template <class T> constexpr bool operator!=(complex<T> a, complex<T> b)
{
    return !(a == b);
}
template <class T> complex<T> operator-(complex<T> a)
{
    return {-a.real(), -a.imag()};
}
template <> struct alignas(4) complex<Half> {
    using value_type = Half;
    Half real_, imag_;
    complex() = default;
    complex(Half real, Half imag) : real_(real), imag_(imag)
    {
    }
    Half real() const
    {
        return real_;
    }
    Half imag() const
    {
        return imag_;
    }
};
template <class T> struct is_complex : std::false_type {
};
template <class T> struct is_complex<complex<T>> : std::true_type {
};
} // namespace c10

namespace std
{
#define KOPS_LIMITS(NAME, BITS, LOWEST, SMALLEST, LARGEST, EPSILON, INFINITE, QUIET)                                   \
    template <> class numeric_limits<c10::NAME>                                                                        \
    {                                                                                                                  \
        static constexpr c10::NAME of(BITS bits)                                                                       \
        {                                                                                                              \
            return {bits, c10::NAME::from_bits_t()};                                                                   \
        }                                                                                                              \
                                                                                                                       \
      public:                                                                                                          \
        static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;           \
        static constexpr bool has_infinity = (INFINITE) != 0, has_quiet_NaN = true;                                    \
        static constexpr c10::NAME lowest()                                                                            \
        {                                                                                                              \
            return of(LOWEST);                                                                                         \
        }                                                                                                              \
        static constexpr c10::NAME min()                                                                               \
        {                                                                                                              \
            return of(SMALLEST);                                                                                       \
        }                                                                                                              \
        static constexpr c10::NAME max()                                                                               \
        {                                                                                                              \
            return of(LARGEST);                                                                                        \
        }                                                                                                              \
        static constexpr c10::NAME epsilon()                                                                           \
        {                                                                                                              \
            return of(EPSILON);                                                                                        \
        }                                                                                                              \
        static constexpr c10::NAME infinity()                                                                          \
        {                                                                                                              \
            return of(INFINITE);                                                                                       \
        }                                                                                                              \
        static constexpr c10::NAME quiet_NaN()                                                                         \
        {                                                                                                              \
            return of(QUIET);                                                                                          \
        }                                                                                                              \
    };
KOPS_LIMITS(Half, uint16_t, 0xfbff, 0x0400, 0x7bff, 0x1400, 0x7c00, 0x7e00)
KOPS_LIMITS(BFloat16, uint16_t, 0xff7f, 0x0080, 0x7f7f, 0x3c00, 0x7f80, 0x7fc0)
KOPS_LIMITS(Float8_e4m3fn, uint8_t, 0xfe, 0x08, 0x7e, 0x20, 0, 0x7f)
KOPS_LIMITS(Float8_e5m2, uint8_t, 0xfb, 0x04, 0x7b, 0x34, 0x7c, 0x7f)
#undef KOPS_LIMITS

template <class T> T abs(const c10::complex<T> &z)
{
    return hypot(z.real(), z.imag());
}
} // namespace std

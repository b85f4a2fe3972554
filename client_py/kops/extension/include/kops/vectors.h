// CUDA's vector types with their make_ functions and alignments, dim3, cuComplex.
#pragma once
#include <cmath>
#include <complex>

#define KOPS_VECTORS(TYPE, NAME, ALIGN2, ALIGN4)                                                                       \
    struct NAME##1                                                                                                     \
    {                                                                                                                  \
        TYPE x;                                                                                                        \
    };                                                                                                                 \
    struct alignas(ALIGN2) NAME##2                                                                                     \
    {                                                                                                                  \
        TYPE x, y;                                                                                                     \
    };                                                                                                                 \
    struct NAME##3                                                                                                     \
    {                                                                                                                  \
        TYPE x, y, z;                                                                                                  \
    };                                                                                                                 \
    struct alignas(ALIGN4) NAME##4                                                                                     \
    {                                                                                                                  \
        TYPE x, y, z, w;                                                                                               \
    };                                                                                                                 \
    constexpr NAME##1 make_##NAME##1(TYPE x)                                                                           \
    {                                                                                                                  \
        return {x};                                                                                                    \
    }                                                                                                                  \
    constexpr NAME##2 make_##NAME##2(TYPE x, TYPE y)                                                                   \
    {                                                                                                                  \
        return {x, y};                                                                                                 \
    }                                                                                                                  \
    constexpr NAME##3 make_##NAME##3(TYPE x, TYPE y, TYPE z)                                                           \
    {                                                                                                                  \
        return {x, y, z};                                                                                              \
    }                                                                                                                  \
    constexpr NAME##4 make_##NAME##4(TYPE x, TYPE y, TYPE z, TYPE w)                                                   \
    {                                                                                                                  \
        return {x, y, z, w};                                                                                           \
    }
KOPS_VECTORS(signed char, char, 2, 4)
KOPS_VECTORS(unsigned char, uchar, 2, 4)
KOPS_VECTORS(short, short, 4, 8)
KOPS_VECTORS(unsigned short, ushort, 4, 8)
KOPS_VECTORS(int, int, 8, 16)
KOPS_VECTORS(unsigned, uint, 8, 16)
KOPS_VECTORS(long, long, 16, 16)
KOPS_VECTORS(unsigned long, ulong, 16, 16)
KOPS_VECTORS(long long, longlong, 16, 16)
KOPS_VECTORS(unsigned long long, ulonglong, 16, 16)
KOPS_VECTORS(float, float, 8, 16)
KOPS_VECTORS(double, double, 16, 16)
#undef KOPS_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
    {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }
    constexpr operator uint3() const
    {
        return {x, y, z};
    }
};

typedef float2 cuFloatComplex;
typedef double2 cuDoubleComplex;
typedef float2 cuComplex;

#define KOPS_COMPLEX(TYPE, REAL, MAKE, SUFFIX)                                                                         \
    constexpr TYPE MAKE(REAL x, REAL y)                                                                                \
    {                                                                                                                  \
        return {x, y};                                                                                                 \
    }                                                                                                                  \
    constexpr REAL cuCreal##SUFFIX(TYPE z)                                                                             \
    {                                                                                                                  \
        return z.x;                                                                                                    \
    }                                                                                                                  \
    constexpr REAL cuCimag##SUFFIX(TYPE z)                                                                             \
    {                                                                                                                  \
        return z.y;                                                                                                    \
    }                                                                                                                  \
    constexpr TYPE cuConj##SUFFIX(TYPE z)                                                                              \
    {                                                                                                                  \
        return {z.x, -z.y};                                                                                            \
    }                                                                                                                  \
    constexpr TYPE cuCadd##SUFFIX(TYPE a, TYPE b)                                                                      \
    {                                                                                                                  \
        return {a.x + b.x, a.y + b.y};                                                                                 \
    }                                                                                                                  \
    constexpr TYPE cuCsub##SUFFIX(TYPE a, TYPE b)                                                                      \
    {                                                                                                                  \
        return {a.x - b.x, a.y - b.y};                                                                                 \
    }                                                                                                                  \
    constexpr TYPE cuCmul##SUFFIX(TYPE a, TYPE b)                                                                      \
    {                                                                                                                  \
        return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};                                                         \
    }                                                                                                                  \
    inline TYPE cuCdiv##SUFFIX(TYPE a, TYPE b)                                                                         \
    {                                                                                                                  \
        std::complex<REAL> q = std::complex<REAL>(a.x, a.y) / std::complex<REAL>(b.x, b.y);                            \
        return {q.real(), q.imag()};                                                                                   \
    }                                                                                                                  \
    inline REAL cuCabs##SUFFIX(TYPE z)                                                                                 \
    {                                                                                                                  \
        return std::hypot(z.x, z.y);                                                                                   \
    }
KOPS_COMPLEX(cuFloatComplex, float, make_cuFloatComplex, f)
KOPS_COMPLEX(cuDoubleComplex, double, make_cuDoubleComplex, )
#undef KOPS_COMPLEX

constexpr cuComplex make_cuComplex(float x, float y)
{
    return {x, y};
}
constexpr cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex z)
{
    return {z.x, z.y};
}
constexpr cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex z)
{
    return {float(z.x), float(z.y)};
}

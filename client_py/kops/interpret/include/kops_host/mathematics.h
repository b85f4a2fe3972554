// Mathematical functions that the C library lacks or names otherwise. Fast variants are as precise as the others.
#ifndef KOPS_HOST_MATHEMATICS_H
#define KOPS_HOST_MATHEMATICS_H

// The smaller and the larger of two numbers of types that need not be the same, of the type that arithmetic gives.
#define KOPS_HOST_MINMAX(R, A, B)                                                                                      \
    KOPS_HOST R min(A a, B b)                                                                                          \
    {                                                                                                                  \
        return (R)b < (R)a ? (R)b : (R)a;                                                                              \
    }                                                                                                                  \
    KOPS_HOST R max(A a, B b)                                                                                          \
    {                                                                                                                  \
        return (R)a < (R)b ? (R)b : (R)a;                                                                              \
    }
#define KOPS_HOST_MINMAX_MIXED(R, A, B) KOPS_HOST_MINMAX(R, A, B) KOPS_HOST_MINMAX(R, B, A)

KOPS_HOST_MINMAX(int, int, int)
KOPS_HOST_MINMAX(unsigned, unsigned, unsigned)
KOPS_HOST_MINMAX(long, long, long)
KOPS_HOST_MINMAX(unsigned long, unsigned long, unsigned long)
KOPS_HOST_MINMAX(long long, long long, long long)
KOPS_HOST_MINMAX(unsigned long long, unsigned long long, unsigned long long)
KOPS_HOST_MINMAX_MIXED(unsigned, int, unsigned)
KOPS_HOST_MINMAX_MIXED(unsigned long, long, unsigned long)
KOPS_HOST_MINMAX_MIXED(unsigned long long, long long, unsigned long long)

// A number beside a NaN wins, as on the device.
#define KOPS_HOST_MINMAX_FLOAT(R, A, B)                                                                                \
    KOPS_HOST R min(A a, B b)                                                                                          \
    {                                                                                                                  \
        return fmin(R(a), R(b));                                                                                       \
    }                                                                                                                  \
    KOPS_HOST R max(A a, B b)                                                                                          \
    {                                                                                                                  \
        return fmax(R(a), R(b));                                                                                       \
    }

KOPS_HOST_MINMAX_FLOAT(float, float, float)
KOPS_HOST_MINMAX_FLOAT(double, double, double)
KOPS_HOST_MINMAX_FLOAT(double, float, double)
KOPS_HOST_MINMAX_FLOAT(double, double, float)

#define KOPS_HOST_F1(NAME, T, VALUE)                                                                                   \
    KOPS_HOST T NAME(T x)                                                                                              \
    {                                                                                                                  \
        return T(VALUE);                                                                                               \
    }
#define KOPS_HOST_F2(NAME, T, VALUE)                                                                                   \
    KOPS_HOST T NAME(T x, T y)                                                                                         \
    {                                                                                                                  \
        return T(VALUE);                                                                                               \
    }
#define KOPS_HOST_F3(NAME, T, VALUE)                                                                                   \
    KOPS_HOST T NAME(T x, T y, T z)                                                                                    \
    {                                                                                                                  \
        return T(VALUE);                                                                                               \
    }

// Some of the names with underscores are declared by the C library's headers for itself, so all of them are macros.
KOPS_HOST_F1(kops_host_rsqrtf, float, 1.0 / sqrt(double(x)))
KOPS_HOST_F1(kops_host_rsqrt, double, 1.0 / sqrt(x))
KOPS_HOST_F1(kops_host_rcbrtf, float, 1.0 / cbrt(double(x)))
KOPS_HOST_F1(kops_host_rcbrt, double, 1.0 / cbrt(x))
KOPS_HOST_F1(kops_host_exp10f, float, pow(10.0, double(x)))
KOPS_HOST_F1(kops_host_exp10, double, pow(10.0, x))
KOPS_HOST_F1(kops_host_rcpf, float, 1.0f / x)
KOPS_HOST_F1(kops_host_rcp, double, 1.0 / x)
KOPS_HOST_F2(kops_host_addf, float, x + y)
KOPS_HOST_F2(kops_host_subf, float, x - y)
KOPS_HOST_F2(kops_host_mulf, float, x *y)
KOPS_HOST_F2(kops_host_divf, float, x / y)
KOPS_HOST_F2(kops_host_add, double, x + y)
KOPS_HOST_F2(kops_host_sub, double, x - y)
KOPS_HOST_F2(kops_host_mul, double, x *y)
KOPS_HOST_F2(kops_host_div, double, x / y)
KOPS_HOST_F1(__saturatef, float, x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f)

#define rsqrtf      kops_host_rsqrtf
#define rsqrt       kops_host_rsqrt
#define rcbrtf      kops_host_rcbrtf
#define rcbrt       kops_host_rcbrt
#define exp10f      kops_host_exp10f
#define exp10       kops_host_exp10
#define __expf      expf
#define __exp2f     exp2f
#define __exp10f    kops_host_exp10f
#define __logf      logf
#define __log2f     log2f
#define __log10f    log10f
#define __sinf      sinf
#define __cosf      cosf
#define __tanf      tanf
#define __tanhf     tanhf
#define __powf      powf
#define __sincosf   sincosf
#define __fdividef  kops_host_divf
#define fdividef    kops_host_divf
#define __fadd_rn   kops_host_addf
#define __fsub_rn   kops_host_subf
#define __fmul_rn   kops_host_mulf
#define __fdiv_rn   kops_host_divf
#define __fmaf_rn   fmaf
#define __frcp_rn   kops_host_rcpf
#define __fsqrt_rn  sqrtf
#define __frsqrt_rn kops_host_rsqrtf
#define __dadd_rn   kops_host_add
#define __dsub_rn   kops_host_sub
#define __dmul_rn   kops_host_mul
#define __ddiv_rn   kops_host_div
#define __fma_rn    fma
#define __drcp_rn   kops_host_rcp
#define __dsqrt_rn  sqrt

constexpr double KOPS_HOST_PI = 3.14159265358979323846;

KOPS_HOST_F1(sinpif, float, sin(KOPS_HOST_PI *fmod(double(x), 2.0)))
KOPS_HOST_F1(cospif, float, cos(KOPS_HOST_PI *fmod(double(x), 2.0)))
KOPS_HOST_F1(sinpi, double, sin(KOPS_HOST_PI *fmod(x, 2.0)))
KOPS_HOST_F1(cospi, double, cos(KOPS_HOST_PI *fmod(x, 2.0)))
KOPS_HOST_F1(normcdff, float, 0.5 * erfc(-double(x) * 0.70710678118654752440))
KOPS_HOST_F1(normcdf, double, 0.5 * erfc(-x * 0.70710678118654752440))
KOPS_HOST_F1(erfcxf, float, exp(double(x) * double(x)) * erfc(double(x)))
KOPS_HOST_F1(erfcx, double, exp(x *x) * erfc(x))
KOPS_HOST_F2(rhypotf, float, 1.0 / hypot(double(x), double(y)))
KOPS_HOST_F2(rhypot, double, 1.0 / hypot(x, y))
KOPS_HOST_F3(norm3df, float, sqrt(double(x) * x + double(y) * y + double(z) * z))
KOPS_HOST_F3(norm3d, double, sqrt(x *x + y * y + z * z))
KOPS_HOST_F3(rnorm3df, float, 1.0 / sqrt(double(x) * x + double(y) * y + double(z) * z))
KOPS_HOST_F3(rnorm3d, double, 1.0 / sqrt(x * x + y * y + z * z))

KOPS_HOST void sincospif(float x, float *s, float *c)
{
    *s = sinpif(x);
    *c = cospif(x);
}

KOPS_HOST void sincospi(double x, double *s, double *c)
{
    *s = sinpi(x);
    *c = cospi(x);
}

#undef KOPS_HOST_F1
#undef KOPS_HOST_F2
#undef KOPS_HOST_F3
#undef KOPS_HOST_MINMAX
#undef KOPS_HOST_MINMAX_MIXED
#undef KOPS_HOST_MINMAX_FLOAT

// Conversion to an integer with rounding to nearest even, to zero, up, down. Out of range gives the nearest limit. NaN
// gives 0, but of a double or to 64 bits only the highest bit.
template <typename I> KOPS_HOST I kops_host_integer(double rounded, bool of_double = false)
{
    const double low = double(std::numeric_limits<I>::min()), high = double(std::numeric_limits<I>::max());
    if (rounded != rounded)
        return of_double || sizeof(I) == 8 ? I((unsigned long long)1 << (8 * sizeof(I) - 1)) : 0;
    return rounded <= low    ? std::numeric_limits<I>::min()
           : rounded >= high ? std::numeric_limits<I>::max()
                             : I(rounded);
}

#define KOPS_HOST_ROUNDED(NAME, I, F)                                                                                  \
    KOPS_HOST I NAME##_rn(F x)                                                                                         \
    {                                                                                                                  \
        return kops_host_integer<I>(nearbyint(double(x)), sizeof(F) == 8);                                             \
    }                                                                                                                  \
    KOPS_HOST I NAME##_rz(F x)                                                                                         \
    {                                                                                                                  \
        return kops_host_integer<I>(trunc(double(x)), sizeof(F) == 8);                                                 \
    }                                                                                                                  \
    KOPS_HOST I NAME##_ru(F x)                                                                                         \
    {                                                                                                                  \
        return kops_host_integer<I>(ceil(double(x)), sizeof(F) == 8);                                                  \
    }                                                                                                                  \
    KOPS_HOST I NAME##_rd(F x)                                                                                         \
    {                                                                                                                  \
        return kops_host_integer<I>(floor(double(x)), sizeof(F) == 8);                                                 \
    }

KOPS_HOST_ROUNDED(__float2int, int, float)
KOPS_HOST_ROUNDED(__float2uint, unsigned, float)
KOPS_HOST_ROUNDED(__float2ll, long long, float)
KOPS_HOST_ROUNDED(__float2ull, unsigned long long, float)
KOPS_HOST_ROUNDED(__double2int, int, double)
KOPS_HOST_ROUNDED(__double2uint, unsigned, double)
KOPS_HOST_ROUNDED(__double2ll, long long, double)
KOPS_HOST_ROUNDED(__double2ull, unsigned long long, double)

#undef KOPS_HOST_ROUNDED

#define KOPS_HOST_CONVERTED(NAME, F, T)                                                                                \
    KOPS_HOST F NAME(T x)                                                                                              \
    {                                                                                                                  \
        return F(x);                                                                                                   \
    }

KOPS_HOST_CONVERTED(__int2float_rn, float, int)
KOPS_HOST_CONVERTED(__uint2float_rn, float, unsigned)
KOPS_HOST_CONVERTED(__ll2float_rn, float, long long)
KOPS_HOST_CONVERTED(__ull2float_rn, float, unsigned long long)
KOPS_HOST_CONVERTED(__int2double_rn, double, int)
KOPS_HOST_CONVERTED(__uint2double_rn, double, unsigned)
KOPS_HOST_CONVERTED(__ll2double_rn, double, long long)
KOPS_HOST_CONVERTED(__ull2double_rn, double, unsigned long long)
KOPS_HOST_CONVERTED(__double2float_rn, float, double)

#undef KOPS_HOST_CONVERTED

#endif

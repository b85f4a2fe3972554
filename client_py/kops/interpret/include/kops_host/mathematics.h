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

#define rsqrtf         kops_host_rsqrtf
#define rsqrt          kops_host_rsqrt
#define rcbrtf         kops_host_rcbrtf
#define rcbrt          kops_host_rcbrt
#define exp10f         kops_host_exp10f
#define exp10          kops_host_exp10
#define __expf         expf
#define __exp2f        exp2f
#define __exp10f       kops_host_exp10f
#define __logf         logf
#define __log2f        log2f
#define __log10f       log10f
#define __sinf         sinf
#define __cosf         cosf
#define __tanf         tanf
#define __tanhf        tanhf
#define __powf         powf
#define __sincosf      sincosf
#define __fdividef     kops_host_divf
#define fdividef       kops_host_divf
#define __fadd_rn      kops_host_addf
#define __fsub_rn      kops_host_subf
#define __fmul_rn      kops_host_mulf
#define __fdiv_rn      kops_host_divf
#define __fmaf_rn      fmaf
#define __frcp_rn      kops_host_rcpf
#define __fsqrt_rn     sqrtf
#define __frsqrt_rn    kops_host_rsqrtf
#define __dadd_rn      kops_host_add
#define __dsub_rn      kops_host_sub
#define __dmul_rn      kops_host_mul
#define __ddiv_rn      kops_host_div
#define __fma_rn       fma
#define __fmaf_ieee_rn fmaf
#define __drcp_rn      kops_host_rcp
#define __dsqrt_rn     sqrt

constexpr double KOPS_HOST_PI = 3.14159265358979323846;

KOPS_HOST_F1(sinpif, float, sin(KOPS_HOST_PI *fmod(double(x), 2.0)))
KOPS_HOST_F1(cospif, float, cos(KOPS_HOST_PI *fmod(double(x), 2.0)))
KOPS_HOST_F1(sinpi, double, sin(KOPS_HOST_PI *fmod(x, 2.0)))
KOPS_HOST_F1(cospi, double, cos(KOPS_HOST_PI *fmod(x, 2.0)))
#define KOPS_HOST_SPECIAL(NAME, FUNCTION)                                                                              \
    KOPS_HOST_F1(NAME, double, kops_host_special(FUNCTION, x))                                                         \
    KOPS_HOST_F1(NAME##f, float, kops_host_special(FUNCTION, double(x)))
KOPS_HOST_SPECIAL(erfinv, KOPS_HOST_ERFINV)
KOPS_HOST_SPECIAL(erfcinv, KOPS_HOST_ERFCINV)
KOPS_HOST_SPECIAL(erfcx, KOPS_HOST_ERFCX)
KOPS_HOST_SPECIAL(normcdf, KOPS_HOST_NORMCDF)
KOPS_HOST_SPECIAL(normcdfinv, KOPS_HOST_NORMCDFINV)
KOPS_HOST_SPECIAL(cyl_bessel_i0, KOPS_HOST_BESSEL_I0)
KOPS_HOST_SPECIAL(cyl_bessel_i1, KOPS_HOST_BESSEL_I1)
KOPS_HOST_F2(fdivide, double, x / y)
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

KOPS_HOST double norm4d(double x, double y, double z, double w)
{
    return hypot(hypot(x, y), hypot(z, w));
}

KOPS_HOST float norm4df(float x, float y, float z, float w)
{
    return float(norm4d(x, y, z, w));
}

KOPS_HOST double rnorm4d(double x, double y, double z, double w)
{
    return 1.0 / norm4d(x, y, z, w);
}

KOPS_HOST float rnorm4df(float x, float y, float z, float w)
{
    return float(rnorm4d(x, y, z, w));
}

KOPS_HOST double norm(int n, const double *values)
{
    double length = 0.0;
    for (int i = 0; i < n; i++)
        length = hypot(length, values[i]);
    return length;
}

KOPS_HOST float normf(int n, const float *values)
{
    double length = 0.0;
    for (int i = 0; i < n; i++)
        length = hypot(length, double(values[i]));
    return float(length);
}

KOPS_HOST double rnorm(int n, const double *values)
{
    return 1.0 / norm(n, values);
}

KOPS_HOST float rnormf(int n, const float *values)
{
    return 1.0f / normf(n, values);
}

KOPS_HOST unsigned umin(unsigned a, unsigned b)
{
    return min(a, b);
}

KOPS_HOST unsigned umax(unsigned a, unsigned b)
{
    return max(a, b);
}

KOPS_HOST long long llmin(long long a, long long b)
{
    return min(a, b);
}

KOPS_HOST long long llmax(long long a, long long b)
{
    return max(a, b);
}

KOPS_HOST unsigned long long ullmin(unsigned long long a, unsigned long long b)
{
    return min(a, b);
}

KOPS_HOST unsigned long long ullmax(unsigned long long a, unsigned long long b)
{
    return max(a, b);
}

// With directed rounding; MODE is a suffix of the functions' names.
#define KOPS_HOST_DIRECTED_OF(F, C, D, KIND, MODE, M)                                                                  \
    KOPS_HOST F __##C##add_##MODE(F x, F y)                                                                            \
    {                                                                                                                  \
        return kops_host_compute_##KIND(KOPS_HOST_SUM_OF, M, x, y, 0);                                                 \
    }                                                                                                                  \
    KOPS_HOST F __##C##sub_##MODE(F x, F y)                                                                            \
    {                                                                                                                  \
        return kops_host_compute_##KIND(KOPS_HOST_DIFFERENCE_OF, M, x, y, 0);                                          \
    }                                                                                                                  \
    KOPS_HOST F __##C##mul_##MODE(F x, F y)                                                                            \
    {                                                                                                                  \
        return kops_host_compute_##KIND(KOPS_HOST_PRODUCT_OF, M, x, y, 0);                                             \
    }                                                                                                                  \
    KOPS_HOST F __##C##div_##MODE(F x, F y)                                                                            \
    {                                                                                                                  \
        return kops_host_compute_##KIND(KOPS_HOST_QUOTIENT_OF, M, x, y, 0);                                            \
    }                                                                                                                  \
    KOPS_HOST F __##C##rcp_##MODE(F x)                                                                                 \
    {                                                                                                                  \
        return kops_host_compute_##KIND(KOPS_HOST_QUOTIENT_OF, M, 1, x, 0);                                            \
    }                                                                                                                  \
    KOPS_HOST F __##C##sqrt_##MODE(F x)                                                                                \
    {                                                                                                                  \
        return kops_host_compute_##KIND(KOPS_HOST_ROOT_OF, M, x, 0, 0);                                                \
    }                                                                                                                  \
    KOPS_HOST F __##D##_##MODE(F x, F y, F z)                                                                          \
    {                                                                                                                  \
        return kops_host_compute_##KIND(KOPS_HOST_PRODUCT_AND_SUM_OF, M, x, y, z);                                     \
    }                                                                                                                  \
    KOPS_HOST F __ll2##KIND##_##MODE(long long x)                                                                      \
    {                                                                                                                  \
        return kops_host_##KIND##_of_signed(M, x);                                                                     \
    }                                                                                                                  \
    KOPS_HOST F __ull2##KIND##_##MODE(unsigned long long x)                                                            \
    {                                                                                                                  \
        return kops_host_##KIND##_of_unsigned(M, x);                                                                   \
    }
#define KOPS_HOST_DIRECTED(MODE, M)                                                                                    \
    KOPS_HOST_DIRECTED_OF(float, f, fmaf, float, MODE, M)                                                              \
    KOPS_HOST_DIRECTED_OF(double, d, fma, double, MODE, M)                                                             \
    KOPS_HOST float __fmaf_ieee_##MODE(float x, float y, float z)                                                      \
    {                                                                                                                  \
        return __fmaf_##MODE(x, y, z);                                                                                 \
    }                                                                                                                  \
    KOPS_HOST float __int2float_##MODE(int x)                                                                          \
    {                                                                                                                  \
        return __ll2float_##MODE(x);                                                                                   \
    }                                                                                                                  \
    KOPS_HOST float __uint2float_##MODE(unsigned x)                                                                    \
    {                                                                                                                  \
        return __ll2float_##MODE(x);                                                                                   \
    }                                                                                                                  \
    KOPS_HOST float __double2float_##MODE(double x)                                                                    \
    {                                                                                                                  \
        return kops_host_float_of(M, x);                                                                               \
    }

KOPS_HOST_DIRECTED(rz, KOPS_HOST_RZ)
KOPS_HOST_DIRECTED(ru, KOPS_HOST_RU)
KOPS_HOST_DIRECTED(rd, KOPS_HOST_RD)

#undef KOPS_HOST_DIRECTED_OF
#undef KOPS_HOST_DIRECTED
#undef KOPS_HOST_SPECIAL
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

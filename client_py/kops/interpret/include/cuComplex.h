// Complex numbers, in float2 and double2.
#ifndef KOPS_HOST_CUCOMPLEX_H
#define KOPS_HOST_CUCOMPLEX_H

#include "cuda_on_host.h"

typedef float2 cuFloatComplex;
typedef double2 cuDoubleComplex;
typedef cuFloatComplex cuComplex;

// F is the suffix of the functions for float. Quotient and length are scaled, so that they overflow only if the result
// does.
#define KOPS_HOST_COMPLEX(C, T, F, MAKE)                                                                               \
    KOPS_HOST C MAKE(T real, T imaginary)                                                                              \
    {                                                                                                                  \
        return {real, imaginary};                                                                                      \
    }                                                                                                                  \
    KOPS_HOST T cuCreal##F(C x)                                                                                        \
    {                                                                                                                  \
        return x.x;                                                                                                    \
    }                                                                                                                  \
    KOPS_HOST T cuCimag##F(C x)                                                                                        \
    {                                                                                                                  \
        return x.y;                                                                                                    \
    }                                                                                                                  \
    KOPS_HOST C cuConj##F(C x)                                                                                         \
    {                                                                                                                  \
        return {x.x, -x.y};                                                                                            \
    }                                                                                                                  \
    KOPS_HOST C cuCadd##F(C x, C y)                                                                                    \
    {                                                                                                                  \
        return {x.x + y.x, x.y + y.y};                                                                                 \
    }                                                                                                                  \
    KOPS_HOST C cuCsub##F(C x, C y)                                                                                    \
    {                                                                                                                  \
        return {x.x - y.x, x.y - y.y};                                                                                 \
    }                                                                                                                  \
    KOPS_HOST C cuCmul##F(C x, C y)                                                                                    \
    {                                                                                                                  \
        return {x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x};                                                         \
    }                                                                                                                  \
    KOPS_HOST C cuCdiv##F(C x, C y)                                                                                    \
    {                                                                                                                  \
        T scale = T(1) / (fabs##F(y.x) + fabs##F(y.y));                                                                \
        C a = {x.x * scale, x.y * scale}, b = {y.x * scale, y.y * scale};                                              \
        T inverse = T(1) / (b.x * b.x + b.y * b.y);                                                                    \
        return {(a.x * b.x + a.y * b.y) * inverse, (a.y * b.x - a.x * b.y) * inverse};                                 \
    }                                                                                                                  \
    KOPS_HOST T cuCabs##F(C x)                                                                                         \
    {                                                                                                                  \
        return hypot##F(x.x, x.y);                                                                                     \
    }                                                                                                                  \
    KOPS_HOST C cuCfma##F(C x, C y, C z)                                                                               \
    {                                                                                                                  \
        return cuCadd##F(cuCmul##F(x, y), z);                                                                          \
    }

KOPS_HOST_COMPLEX(cuFloatComplex, float, f, make_cuFloatComplex)
KOPS_HOST_COMPLEX(cuDoubleComplex, double, , make_cuDoubleComplex)

#undef KOPS_HOST_COMPLEX

KOPS_HOST cuComplex make_cuComplex(float real, float imaginary)
{
    return {real, imaginary};
}

KOPS_HOST cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex x)
{
    return {double(x.x), double(x.y)};
}

KOPS_HOST cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex x)
{
    return {float(x.x), float(x.y)};
}

#endif

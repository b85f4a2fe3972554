// IEEE half precision.
#ifndef KOPS_HOST_CUDA_FP16_H
#define KOPS_HOST_CUDA_FP16_H

#include "cuda_on_host.h"

#include "kops_host/half.h"

#include "kops_host/half_functions.h"

KOPS_HOST_SMALL(__half, __half_raw, kops_host_half_bits, kops_host_half_value)
KOPS_HOST_PAIR(__half, __half2, __half2_raw)

KOPS_HOST_SMALL_UNARY(__half, __half2, sqrt, sqrt(x))
KOPS_HOST_SMALL_UNARY(__half, __half2, rsqrt, 1.0 / sqrt(x))
KOPS_HOST_SMALL_UNARY(__half, __half2, rcp, 1.0 / x)
KOPS_HOST_SMALL_UNARY(__half, __half2, exp, exp(x))
KOPS_HOST_SMALL_UNARY(__half, __half2, exp2, exp2(x))
KOPS_HOST_SMALL_UNARY(__half, __half2, exp10, pow(10.0, x))
KOPS_HOST_SMALL_UNARY(__half, __half2, log, log(x))
KOPS_HOST_SMALL_UNARY(__half, __half2, log2, log2(x))
KOPS_HOST_SMALL_UNARY(__half, __half2, log10, log10(x))
KOPS_HOST_SMALL_UNARY(__half, __half2, sin, sin(x))
KOPS_HOST_SMALL_UNARY(__half, __half2, cos, cos(x))
KOPS_HOST_SMALL_UNARY(__half, __half2, tanh, tanh(x))
KOPS_HOST_SMALL_UNARY(__half, __half2, floor, floor(x))
KOPS_HOST_SMALL_UNARY(__half, __half2, ceil, ceil(x))
KOPS_HOST_SMALL_UNARY(__half, __half2, trunc, trunc(x))
KOPS_HOST_SMALL_UNARY(__half, __half2, rint, nearbyint(x))
KOPS_HOST_SMALL_BINARY(__half, __half2, __hadd, a + b)
KOPS_HOST_SMALL_BINARY(__half, __half2, __hsub, a - b)
KOPS_HOST_SMALL_BINARY(__half, __half2, __hmul, a *b)
KOPS_HOST_SMALL_BINARY(__half, __half2, __hdiv, a / b)
KOPS_HOST_SMALL_BINARY(__half, __half2, __hadd_rn, a + b)
KOPS_HOST_SMALL_BINARY(__half, __half2, __hsub_rn, a - b)
KOPS_HOST_SMALL_BINARY(__half, __half2, __hmul_rn, a *b)
KOPS_HOST_SMALL_BINARY(__half, __half2, __hmin, __half(fminf(float(a), float(b))))
KOPS_HOST_SMALL_BINARY(__half, __half2, __hmax, __half(fmaxf(float(a), float(b))))
KOPS_HOST_SMALL_BINARY(__half, __half2, __hadd_sat, __half(__saturatef(float(a) + float(b))))
KOPS_HOST_SMALL_BINARY(__half, __half2, __hmul_sat, __half(__saturatef(float(a) * float(b))))
KOPS_HOST_SMALL_BINARY(__half, __half2, __hsub_sat, __half(__saturatef(float(a) - float(b))))
KOPS_HOST_SMALL_COMPARE(__half, __half2, __heq, ==)
KOPS_HOST_SMALL_COMPARE(__half, __half2, __hne, !=)
KOPS_HOST_SMALL_COMPARE(__half, __half2, __hlt, <)
KOPS_HOST_SMALL_COMPARE(__half, __half2, __hgt, >)
KOPS_HOST_SMALL_COMPARE(__half, __half2, __hle, <=)
KOPS_HOST_SMALL_COMPARE(__half, __half2, __hge, >=)

KOPS_HOST __half __hfma(__half a, __half b, __half c)
{
    return __half(double(float(a)) * double(float(b)) + double(float(c)));
}

KOPS_HOST __half2 __hfma2(__half2 a, __half2 b, __half2 c)
{
    return __half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}

KOPS_HOST __half __hfma_relu(__half a, __half b, __half c)
{
    return __hmax(__hfma(a, b, c), __half(0.0f));
}

KOPS_HOST __half2 __h2div(__half2 a, __half2 b)
{
    return a / b;
}

KOPS_HOST __half __hneg(__half a)
{
    return -a;
}

KOPS_HOST __half2 __hneg2(__half2 a)
{
    return -a;
}

KOPS_HOST __half __habs(__half a)
{
    a.__x &= 0x7fffu;
    return a;
}

KOPS_HOST __half2 __habs2(__half2 a)
{
    return __half2(__habs(a.x), __habs(a.y));
}

KOPS_HOST bool __hisnan(__half a)
{
    return float(a) != float(a);
}

KOPS_HOST int __hisinf(__half a)
{
    return __builtin_isinf(float(a)) ? (float(a) > 0 ? 1 : -1) : 0;
}

KOPS_HOST __half __low2half(__half2 a)
{
    return a.x;
}

KOPS_HOST __half __high2half(__half2 a)
{
    return a.y;
}

KOPS_HOST float __low2float(__half2 a)
{
    return a.x;
}

KOPS_HOST float __high2float(__half2 a)
{
    return a.y;
}

KOPS_HOST __half2 __halves2half2(__half a, __half b)
{
    return __half2(a, b);
}

KOPS_HOST __half2 make_half2(__half a, __half b)
{
    return __half2(a, b);
}

KOPS_HOST __half2 __half2half2(__half a)
{
    return __half2(a, a);
}

KOPS_HOST __half2 __low2half2(__half2 a)
{
    return __half2(a.x, a.x);
}

KOPS_HOST __half2 __high2half2(__half2 a)
{
    return __half2(a.y, a.y);
}

KOPS_HOST __half2 __lowhigh2highlow(__half2 a)
{
    return __half2(a.y, a.x);
}

KOPS_HOST __half2 __lows2half2(__half2 a, __half2 b)
{
    return __half2(a.x, b.x);
}

KOPS_HOST __half2 __highs2half2(__half2 a, __half2 b)
{
    return __half2(a.y, b.y);
}

KOPS_HOST float __half2float(__half a)
{
    return a;
}

KOPS_HOST float2 __half22float2(__half2 a)
{
    return {float(a.x), float(a.y)};
}

KOPS_HOST __half __float2half(float a)
{
    return __half(a);
}

KOPS_HOST __half __float2half_rn(float a)
{
    return __half(a);
}

KOPS_HOST __half __double2half(double a)
{
    return __half(a);
}

KOPS_HOST __half2 __float2half2_rn(float a)
{
    return __half2(__half(a), __half(a));
}

KOPS_HOST __half2 __floats2half2_rn(float a, float b)
{
    return __half2(__half(a), __half(b));
}

KOPS_HOST __half2 __float22half2_rn(float2 a)
{
    return __half2(__half(a.x), __half(a.y));
}

KOPS_HOST __half __int2half_rn(int a)
{
    return __half(a);
}

KOPS_HOST __half __uint2half_rn(unsigned a)
{
    return __half(a);
}

KOPS_HOST __half __short2half_rn(short a)
{
    return __half(a);
}

KOPS_HOST __half __ushort2half_rn(unsigned short a)
{
    return __half(a);
}

KOPS_HOST short __half_as_short(__half a)
{
    return short(a.__x);
}

KOPS_HOST unsigned short __half_as_ushort(__half a)
{
    return a.__x;
}

KOPS_HOST __half __short_as_half(short a)
{
    __half result;
    result.__x = (unsigned short)a;
    return result;
}

KOPS_HOST __half __ushort_as_half(unsigned short a)
{
    __half result;
    result.__x = a;
    return result;
}

KOPS_HOST_SMALL_DIRECTED(__half, __float2half, float)
KOPS_HOST_SMALL_DIRECTED(__half, __int2half, int)
KOPS_HOST_SMALL_DIRECTED(__half, __uint2half, unsigned)
KOPS_HOST_SMALL_DIRECTED(__half, __short2half, short)
KOPS_HOST_SMALL_DIRECTED(__half, __ushort2half, unsigned short)
KOPS_HOST_SMALL_TO_INTEGER(__half, __half2int, int)
KOPS_HOST_SMALL_TO_INTEGER(__half, __half2uint, unsigned)
KOPS_HOST_SMALL_TO_INTEGER(__half, __half2short, short)
KOPS_HOST_SMALL_TO_INTEGER(__half, __half2ushort, unsigned short)
KOPS_HOST_SMALL_TO_INTEGER(__half, __half2ll, long long)
KOPS_HOST_SMALL_TO_INTEGER(__half, __half2ull, unsigned long long)

typedef __half half;
typedef __half2 half2;

#endif

// bfloat16: a float without its lower half.
#ifndef KOPS_HOST_CUDA_BF16_H
#define KOPS_HOST_CUDA_BF16_H

#include "cuda_on_host.h"

#include "kops_host/half.h"

#include "kops_host/half_functions.h"

KOPS_HOST_SMALL(__nv_bfloat16, __nv_bfloat16_raw, kops_host_bfloat_bits, kops_host_bfloat_value)
KOPS_HOST_PAIR(__nv_bfloat16, __nv_bfloat162, __nv_bfloat162_raw)

KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, sqrt, sqrt(x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, rsqrt, 1.0 / sqrt(x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, rcp, 1.0 / x)
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, exp, exp(x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, exp2, exp2(x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, exp10, pow(10.0, x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, log, log(x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, log2, log2(x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, log10, log10(x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, sin, sin(x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, cos, cos(x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, tanh, tanh(x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, floor, floor(x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, ceil, ceil(x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, trunc, trunc(x))
KOPS_HOST_SMALL_UNARY(__nv_bfloat16, __nv_bfloat162, rint, nearbyint(x))
KOPS_HOST_SMALL_BINARY(__nv_bfloat16, __nv_bfloat162, __hadd, a + b)
KOPS_HOST_SMALL_BINARY(__nv_bfloat16, __nv_bfloat162, __hsub, a - b)
KOPS_HOST_SMALL_BINARY(__nv_bfloat16, __nv_bfloat162, __hmul, a *b)
KOPS_HOST_SMALL_BINARY(__nv_bfloat16, __nv_bfloat162, __hdiv, a / b)
KOPS_HOST_SMALL_BINARY(__nv_bfloat16, __nv_bfloat162, __hadd_rn, a + b)
KOPS_HOST_SMALL_BINARY(__nv_bfloat16, __nv_bfloat162, __hsub_rn, a - b)
KOPS_HOST_SMALL_BINARY(__nv_bfloat16, __nv_bfloat162, __hmul_rn, a *b)
KOPS_HOST_SMALL_BINARY(__nv_bfloat16, __nv_bfloat162, __hmin, __nv_bfloat16(fminf(float(a), float(b))))
KOPS_HOST_SMALL_BINARY(__nv_bfloat16, __nv_bfloat162, __hmax, __nv_bfloat16(fmaxf(float(a), float(b))))
KOPS_HOST_SMALL_BINARY(__nv_bfloat16, __nv_bfloat162, __hadd_sat, __nv_bfloat16(__saturatef(float(a) + float(b))))
KOPS_HOST_SMALL_BINARY(__nv_bfloat16, __nv_bfloat162, __hmul_sat, __nv_bfloat16(__saturatef(float(a) * float(b))))
KOPS_HOST_SMALL_BINARY(__nv_bfloat16, __nv_bfloat162, __hsub_sat, __nv_bfloat16(__saturatef(float(a) - float(b))))
KOPS_HOST_SMALL_COMPARE(__nv_bfloat16, __nv_bfloat162, __heq, ==)
KOPS_HOST_SMALL_COMPARE(__nv_bfloat16, __nv_bfloat162, __hne, !=)
KOPS_HOST_SMALL_COMPARE(__nv_bfloat16, __nv_bfloat162, __hlt, <)
KOPS_HOST_SMALL_COMPARE(__nv_bfloat16, __nv_bfloat162, __hgt, >)
KOPS_HOST_SMALL_COMPARE(__nv_bfloat16, __nv_bfloat162, __hle, <=)
KOPS_HOST_SMALL_COMPARE(__nv_bfloat16, __nv_bfloat162, __hge, >=)

KOPS_HOST __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c)
{
    return __nv_bfloat16(double(float(a)) * double(float(b)) + double(float(c)));
}

KOPS_HOST __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c)
{
    return __nv_bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}

KOPS_HOST __nv_bfloat16 __hfma_relu(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c)
{
    return __hmax(__hfma(a, b, c), __nv_bfloat16(0.0f));
}

KOPS_HOST __nv_bfloat162 __h2div(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return a / b;
}

KOPS_HOST __nv_bfloat16 __hneg(__nv_bfloat16 a)
{
    return -a;
}

KOPS_HOST __nv_bfloat162 __hneg2(__nv_bfloat162 a)
{
    return -a;
}

KOPS_HOST __nv_bfloat16 __habs(__nv_bfloat16 a)
{
    a.__x &= 0x7fffu;
    return a;
}

KOPS_HOST __nv_bfloat162 __habs2(__nv_bfloat162 a)
{
    return __nv_bfloat162(__habs(a.x), __habs(a.y));
}

KOPS_HOST bool __hisnan(__nv_bfloat16 a)
{
    return float(a) != float(a);
}

KOPS_HOST int __hisinf(__nv_bfloat16 a)
{
    return __builtin_isinf(float(a)) ? (float(a) > 0 ? 1 : -1) : 0;
}

KOPS_HOST __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a)
{
    return a.x;
}

KOPS_HOST __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a)
{
    return a.y;
}

KOPS_HOST float __low2float(__nv_bfloat162 a)
{
    return a.x;
}

KOPS_HOST float __high2float(__nv_bfloat162 a)
{
    return a.y;
}

KOPS_HOST __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __nv_bfloat162(a, b);
}

KOPS_HOST __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __nv_bfloat162(a, b);
}

KOPS_HOST __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a)
{
    return __nv_bfloat162(a, a);
}

KOPS_HOST __nv_bfloat162 __low2bfloat162(__nv_bfloat162 a)
{
    return __nv_bfloat162(a.x, a.x);
}

KOPS_HOST __nv_bfloat162 __high2bfloat162(__nv_bfloat162 a)
{
    return __nv_bfloat162(a.y, a.y);
}

KOPS_HOST __nv_bfloat162 __lowhigh2highlow(__nv_bfloat162 a)
{
    return __nv_bfloat162(a.y, a.x);
}

KOPS_HOST __nv_bfloat162 __lows2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return __nv_bfloat162(a.x, b.x);
}

KOPS_HOST __nv_bfloat162 __highs2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return __nv_bfloat162(a.y, b.y);
}

KOPS_HOST float __bfloat162float(__nv_bfloat16 a)
{
    return a;
}

KOPS_HOST float2 __bfloat1622float2(__nv_bfloat162 a)
{
    return {float(a.x), float(a.y)};
}

KOPS_HOST __nv_bfloat16 __float2bfloat16(float a)
{
    return __nv_bfloat16(a);
}

KOPS_HOST __nv_bfloat16 __float2bfloat16_rn(float a)
{
    return __nv_bfloat16(a);
}

KOPS_HOST __nv_bfloat16 __double2bfloat16(double a)
{
    return __nv_bfloat16(a);
}

KOPS_HOST __nv_bfloat162 __float2bfloat162_rn(float a)
{
    return __nv_bfloat162(__nv_bfloat16(a), __nv_bfloat16(a));
}

KOPS_HOST __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return __nv_bfloat162(__nv_bfloat16(a), __nv_bfloat16(b));
}

KOPS_HOST __nv_bfloat162 __float22bfloat162_rn(float2 a)
{
    return __nv_bfloat162(__nv_bfloat16(a.x), __nv_bfloat16(a.y));
}

KOPS_HOST __nv_bfloat16 __int2bfloat16_rn(int a)
{
    return __nv_bfloat16(a);
}

KOPS_HOST __nv_bfloat16 __uint2bfloat16_rn(unsigned a)
{
    return __nv_bfloat16(a);
}

KOPS_HOST __nv_bfloat16 __short2bfloat16_rn(short a)
{
    return __nv_bfloat16(a);
}

KOPS_HOST __nv_bfloat16 __ushort2bfloat16_rn(unsigned short a)
{
    return __nv_bfloat16(a);
}

KOPS_HOST short __bfloat16_as_short(__nv_bfloat16 a)
{
    return short(a.__x);
}

KOPS_HOST unsigned short __bfloat16_as_ushort(__nv_bfloat16 a)
{
    return a.__x;
}

KOPS_HOST __nv_bfloat16 __short_as_bfloat16(short a)
{
    __nv_bfloat16 result;
    result.__x = (unsigned short)a;
    return result;
}

KOPS_HOST __nv_bfloat16 __ushort_as_bfloat16(unsigned short a)
{
    __nv_bfloat16 result;
    result.__x = a;
    return result;
}

KOPS_HOST_SMALL_DIRECTED(__nv_bfloat16, __float2bfloat16, float)
KOPS_HOST_SMALL_DIRECTED(__nv_bfloat16, __int2bfloat16, int)
KOPS_HOST_SMALL_DIRECTED(__nv_bfloat16, __uint2bfloat16, unsigned)
KOPS_HOST_SMALL_DIRECTED(__nv_bfloat16, __short2bfloat16, short)
KOPS_HOST_SMALL_DIRECTED(__nv_bfloat16, __ushort2bfloat16, unsigned short)
KOPS_HOST_SMALL_TO_INTEGER(__nv_bfloat16, __bfloat162int, int)
KOPS_HOST_SMALL_TO_INTEGER(__nv_bfloat16, __bfloat162uint, unsigned)
KOPS_HOST_SMALL_TO_INTEGER(__nv_bfloat16, __bfloat162short, short)
KOPS_HOST_SMALL_TO_INTEGER(__nv_bfloat16, __bfloat162ushort, unsigned short)
KOPS_HOST_SMALL_TO_INTEGER(__nv_bfloat16, __bfloat162ll, long long)
KOPS_HOST_SMALL_TO_INTEGER(__nv_bfloat16, __bfloat162ull, unsigned long long)

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#endif

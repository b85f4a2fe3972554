// bfloat16: a float without its lower half.
#ifndef KOPS_HOST_CUDA_BF16_H
#define KOPS_HOST_CUDA_BF16_H

#include "cuda_on_host.h"

#include "kops_host/half.h"

KOPS_HOST_SMALL(__nv_bfloat16, __nv_bfloat16_raw, kops_host_bfloat_bits, kops_host_bfloat_value)
KOPS_HOST_PAIR(__nv_bfloat16, __nv_bfloat162, __nv_bfloat162_raw)
KOPS_HOST_SMALL_FUNCTIONS(__nv_bfloat16, __nv_bfloat162)

KOPS_HOST __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a)
{
    return a.x;
}

KOPS_HOST __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a)
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

KOPS_HOST __nv_bfloat16 __ll2bfloat16_rn(long long a)
{
    return __nv_bfloat16(kops_host_for_rounding(a));
}

KOPS_HOST __nv_bfloat16 __ull2bfloat16_rn(unsigned long long a)
{
    return __nv_bfloat16(kops_host_for_rounding(a));
}

KOPS_HOST signed char __bfloat162char_rz(__nv_bfloat16 a)
{
    return kops_host_integer<signed char>(trunc(double(float(a))));
}

KOPS_HOST unsigned char __bfloat162uchar_rz(__nv_bfloat16 a)
{
    return kops_host_integer<unsigned char>(trunc(double(float(a))));
}

KOPS_HOST_SMALL_DIRECTED(__nv_bfloat16, __ll2bfloat16, long long)
KOPS_HOST_SMALL_DIRECTED(__nv_bfloat16, __ull2bfloat16, unsigned long long)
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

// IEEE half precision.
#ifndef KOPS_HOST_CUDA_FP16_H
#define KOPS_HOST_CUDA_FP16_H

#include "cuda_on_host.h"

#include "kops_host/half.h"

KOPS_HOST_SMALL(__half, __half_raw, kops_host_half_bits, kops_host_half_value)
KOPS_HOST_PAIR(__half, __half2, __half2_raw)
KOPS_HOST_SMALL_FUNCTIONS(__half, __half2)

KOPS_HOST __half __low2half(__half2 a)
{
    return a.x;
}

KOPS_HOST __half __high2half(__half2 a)
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

KOPS_HOST __half __ll2half_rn(long long a)
{
    return __half(kops_host_for_rounding(a));
}

KOPS_HOST __half __ull2half_rn(unsigned long long a)
{
    return __half(kops_host_for_rounding(a));
}

KOPS_HOST signed char __half2char_rz(__half a)
{
    return kops_host_integer<signed char>(trunc(double(float(a))));
}

KOPS_HOST unsigned char __half2uchar_rz(__half a)
{
    return kops_host_integer<unsigned char>(trunc(double(float(a))));
}

KOPS_HOST_SMALL_DIRECTED(__half, __ll2half, long long)
KOPS_HOST_SMALL_DIRECTED(__half, __ull2half, unsigned long long)
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

// What half precision and bfloat16 have alike: cuda_fp16.h and cuda_bf16.h include this once each. KOPS_HOST_H is the
// type and KOPS_HOST_H2 its pair, KOPS_HOST_NAME(before, after) a function's name with the type's word in the middle,
// KOPS_HOST_PAIR_NAME the name with that word twice.

#define KOPS_HOST_DIRECTED(name, T)   KOPS_HOST_SMALL_DIRECTED(KOPS_HOST_H, name, T)
#define KOPS_HOST_TO_INTEGER(name, I) KOPS_HOST_SMALL_TO_INTEGER(KOPS_HOST_H, name, I)

KOPS_HOST_SMALL_FUNCTIONS(KOPS_HOST_H, KOPS_HOST_H2)

KOPS_HOST KOPS_HOST_H KOPS_HOST_NAME(__low2, )(KOPS_HOST_H2 a)
{
    return a.x;
}

KOPS_HOST KOPS_HOST_H KOPS_HOST_NAME(__high2, )(KOPS_HOST_H2 a)
{
    return a.y;
}

KOPS_HOST KOPS_HOST_H2 KOPS_HOST_NAME(__halves2, 2)(KOPS_HOST_H a, KOPS_HOST_H b)
{
    return KOPS_HOST_H2(a, b);
}

KOPS_HOST KOPS_HOST_H2 KOPS_HOST_NAME(make_, 2)(KOPS_HOST_H a, KOPS_HOST_H b)
{
    return KOPS_HOST_H2(a, b);
}

KOPS_HOST KOPS_HOST_H2 KOPS_HOST_PAIR_NAME(KOPS_HOST_H a)
{
    return KOPS_HOST_H2(a, a);
}

KOPS_HOST KOPS_HOST_H2 KOPS_HOST_NAME(__low2, 2)(KOPS_HOST_H2 a)
{
    return KOPS_HOST_H2(a.x, a.x);
}

KOPS_HOST KOPS_HOST_H2 KOPS_HOST_NAME(__high2, 2)(KOPS_HOST_H2 a)
{
    return KOPS_HOST_H2(a.y, a.y);
}

KOPS_HOST KOPS_HOST_H2 KOPS_HOST_NAME(__lows2, 2)(KOPS_HOST_H2 a, KOPS_HOST_H2 b)
{
    return KOPS_HOST_H2(a.x, b.x);
}

KOPS_HOST KOPS_HOST_H2 KOPS_HOST_NAME(__highs2, 2)(KOPS_HOST_H2 a, KOPS_HOST_H2 b)
{
    return KOPS_HOST_H2(a.y, b.y);
}

KOPS_HOST float KOPS_HOST_NAME(__, 2float)(KOPS_HOST_H a)
{
    return a;
}

KOPS_HOST float2 KOPS_HOST_NAME(__, 22float2)(KOPS_HOST_H2 a)
{
    return {float(a.x), float(a.y)};
}

KOPS_HOST KOPS_HOST_H KOPS_HOST_NAME(__float2, )(float a)
{
    return KOPS_HOST_H(a);
}

KOPS_HOST KOPS_HOST_H KOPS_HOST_NAME(__float2, _rn)(float a)
{
    return KOPS_HOST_H(a);
}

KOPS_HOST KOPS_HOST_H KOPS_HOST_NAME(__double2, )(double a)
{
    return KOPS_HOST_H(a);
}

KOPS_HOST KOPS_HOST_H2 KOPS_HOST_NAME(__float2, 2_rn)(float a)
{
    return KOPS_HOST_H2(KOPS_HOST_H(a), KOPS_HOST_H(a));
}

KOPS_HOST KOPS_HOST_H2 KOPS_HOST_NAME(__floats2, 2_rn)(float a, float b)
{
    return KOPS_HOST_H2(KOPS_HOST_H(a), KOPS_HOST_H(b));
}

KOPS_HOST KOPS_HOST_H2 KOPS_HOST_NAME(__float22, 2_rn)(float2 a)
{
    return KOPS_HOST_H2(KOPS_HOST_H(a.x), KOPS_HOST_H(a.y));
}

KOPS_HOST KOPS_HOST_H KOPS_HOST_NAME(__int2, _rn)(int a)
{
    return KOPS_HOST_H(a);
}

KOPS_HOST KOPS_HOST_H KOPS_HOST_NAME(__uint2, _rn)(unsigned a)
{
    return KOPS_HOST_H(a);
}

KOPS_HOST KOPS_HOST_H KOPS_HOST_NAME(__short2, _rn)(short a)
{
    return KOPS_HOST_H(a);
}

KOPS_HOST KOPS_HOST_H KOPS_HOST_NAME(__ushort2, _rn)(unsigned short a)
{
    return KOPS_HOST_H(a);
}

KOPS_HOST short KOPS_HOST_NAME(__, _as_short)(KOPS_HOST_H a)
{
    return short(a.__x);
}

KOPS_HOST unsigned short KOPS_HOST_NAME(__, _as_ushort)(KOPS_HOST_H a)
{
    return a.__x;
}

KOPS_HOST KOPS_HOST_H KOPS_HOST_NAME(__short_as_, )(short a)
{
    KOPS_HOST_H result;
    result.__x = (unsigned short)a;
    return result;
}

KOPS_HOST KOPS_HOST_H KOPS_HOST_NAME(__ushort_as_, )(unsigned short a)
{
    KOPS_HOST_H result;
    result.__x = a;
    return result;
}

KOPS_HOST KOPS_HOST_H KOPS_HOST_NAME(__ll2, _rn)(long long a)
{
    return KOPS_HOST_H(kops_host_for_rounding(a));
}

KOPS_HOST KOPS_HOST_H KOPS_HOST_NAME(__ull2, _rn)(unsigned long long a)
{
    return KOPS_HOST_H(kops_host_for_rounding(a));
}

KOPS_HOST signed char KOPS_HOST_NAME(__, 2char_rz)(KOPS_HOST_H a)
{
    return kops_host_integer<signed char>(trunc(double(float(a))));
}

KOPS_HOST unsigned char KOPS_HOST_NAME(__, 2uchar_rz)(KOPS_HOST_H a)
{
    return kops_host_integer<unsigned char>(trunc(double(float(a))));
}

KOPS_HOST_DIRECTED(KOPS_HOST_NAME(__ll2, ), long long)
KOPS_HOST_DIRECTED(KOPS_HOST_NAME(__ull2, ), unsigned long long)
KOPS_HOST_DIRECTED(KOPS_HOST_NAME(__float2, ), float)
KOPS_HOST_DIRECTED(KOPS_HOST_NAME(__int2, ), int)
KOPS_HOST_DIRECTED(KOPS_HOST_NAME(__uint2, ), unsigned)
KOPS_HOST_DIRECTED(KOPS_HOST_NAME(__short2, ), short)
KOPS_HOST_DIRECTED(KOPS_HOST_NAME(__ushort2, ), unsigned short)
KOPS_HOST_TO_INTEGER(KOPS_HOST_NAME(__, 2int), int)
KOPS_HOST_TO_INTEGER(KOPS_HOST_NAME(__, 2uint), unsigned)
KOPS_HOST_TO_INTEGER(KOPS_HOST_NAME(__, 2short), short)
KOPS_HOST_TO_INTEGER(KOPS_HOST_NAME(__, 2ushort), unsigned short)
KOPS_HOST_TO_INTEGER(KOPS_HOST_NAME(__, 2ll), long long)
KOPS_HOST_TO_INTEGER(KOPS_HOST_NAME(__, 2ull), unsigned long long)

#undef KOPS_HOST_DIRECTED
#undef KOPS_HOST_TO_INTEGER
#undef KOPS_HOST_H
#undef KOPS_HOST_H2
#undef KOPS_HOST_NAME
#undef KOPS_HOST_PAIR_NAME

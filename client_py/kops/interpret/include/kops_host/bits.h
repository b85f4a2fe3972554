// Integer functions, and reading bits as another type.
#ifndef KOPS_HOST_BITS_H
#define KOPS_HOST_BITS_H

KOPS_HOST int __popc(unsigned v)
{
    return __builtin_popcount(v);
}

KOPS_HOST int __popcll(unsigned long long v)
{
    return __builtin_popcountll(v);
}

KOPS_HOST int __ffs(int v)
{
    return __builtin_ffs(v);
}

KOPS_HOST int __ffsll(long long v)
{
    return __builtin_ffsll(v);
}

KOPS_HOST int __clz(int v)
{
    return v ? __builtin_clz(unsigned(v)) : 32;
}

KOPS_HOST int __clzll(long long v)
{
    return v ? __builtin_clzll((unsigned long long)v) : 64;
}

KOPS_HOST unsigned __brev(unsigned v)
{
    v = (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
    v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
    v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(v);
}

KOPS_HOST unsigned long long __brevll(unsigned long long v)
{
    return (unsigned long long)__brev(unsigned(v)) << 32 | __brev(unsigned(v >> 32));
}

KOPS_HOST int __mulhi(int a, int b)
{
    return int((long long)a * b >> 32);
}

KOPS_HOST unsigned __umulhi(unsigned a, unsigned b)
{
    return unsigned((unsigned long long)a * b >> 32);
}

KOPS_HOST long long __mul64hi(long long a, long long b)
{
    return (long long)((__int128)a * b >> 64);
}

KOPS_HOST unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

KOPS_HOST int __mul24(int a, int b)
{
    return int(unsigned(a << 8 >> 8) * unsigned(b << 8 >> 8));
}

KOPS_HOST unsigned __umul24(unsigned a, unsigned b)
{
    return (a & 0xffffffu) * (b & 0xffffffu);
}

KOPS_HOST int __hadd(int a, int b)
{
    return int(((long long)a + b) >> 1);
}

KOPS_HOST int __rhadd(int a, int b)
{
    return int(((long long)a + b + 1) >> 1);
}

KOPS_HOST unsigned __urhadd(unsigned a, unsigned b)
{
    return unsigned(((unsigned long long)a + b + 1) >> 1);
}

KOPS_HOST unsigned __uhadd(unsigned a, unsigned b)
{
    return unsigned(((unsigned long long)a + b) >> 1);
}

KOPS_HOST unsigned __sad(int a, int b, unsigned c)
{
    return c + unsigned(a > b ? (long long)a - b : (long long)b - a);
}

KOPS_HOST unsigned __usad(unsigned a, unsigned b, unsigned c)
{
    return c + (a > b ? a - b : b - a);
}

KOPS_HOST unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return unsigned(((unsigned long long)high << 32 | low) << (shift & 31) >> 32);
}

KOPS_HOST unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return unsigned(((unsigned long long)high << 32 | low) >> (shift & 31));
}

KOPS_HOST unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift)
{
    return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}

KOPS_HOST unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift)
{
    return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}

// The place of a set bit: of the offset-th from `base` upwards, or downwards if it is negative.
KOPS_HOST unsigned __fns(unsigned mask, unsigned base, int offset)
{
    int step = offset < 0 ? -1 : 1, left = offset < 0 ? -offset : offset;
    for (int at = int(base); at >= 0 && at < 32; at += step) {
        bool is_set = mask >> at & 1u;
        if (offset == 0)
            return is_set ? base : ~0u;
        left -= is_set;
        if (left == 0)
            return unsigned(at);
    }
    return ~0u;
}

KOPS_HOST unsigned __byte_perm(unsigned a, unsigned b, unsigned selector)
{
    unsigned long long bytes = (unsigned long long)b << 32 | a;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned choice = selector >> (4 * i) & 15u, byte = unsigned(bytes >> (8 * (choice & 7u)) & 0xffu);
        result |= (choice & 8u ? (byte & 0x80u ? 0xffu : 0u) : byte) << (8 * i);
    }
    return result;
}

#define KOPS_HOST_REINTERPRET(NAME, TO, FROM)                                                                          \
    KOPS_HOST TO NAME(FROM value)                                                                                      \
    {                                                                                                                  \
        static_assert(sizeof(TO) == sizeof(FROM), "the same bits");                                                    \
        TO result;                                                                                                     \
        __builtin_memcpy(&result, &value, sizeof result);                                                              \
        return result;                                                                                                 \
    }

KOPS_HOST_REINTERPRET(__float_as_int, int, float)
KOPS_HOST_REINTERPRET(__float_as_uint, unsigned, float)
KOPS_HOST_REINTERPRET(__int_as_float, float, int)
KOPS_HOST_REINTERPRET(__uint_as_float, float, unsigned)
KOPS_HOST_REINTERPRET(__double_as_longlong, long long, double)
KOPS_HOST_REINTERPRET(__longlong_as_double, double, long long)

#undef KOPS_HOST_REINTERPRET

KOPS_HOST int __double2hiint(double v)
{
    return int(__double_as_longlong(v) >> 32);
}

KOPS_HOST int __double2loint(double v)
{
    return int(__double_as_longlong(v));
}

KOPS_HOST double __hiloint2double(int high, int low)
{
    return __longlong_as_double((long long)high << 32 | (long long)(unsigned)low);
}

#endif

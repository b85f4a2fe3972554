// Integers of 8 and 16 bits in a word of 32, and the functions for dynamic programming.
#ifndef KOPS_HOST_SIMD_H
#define KOPS_HOST_SIMD_H

// Applies a function to each lane of BITS bits, read with or without sign; the results are cut to the lane.
template <int BITS, bool SIGNED, typename F> KOPS_HOST unsigned kops_host_lanes_of(unsigned a, unsigned b, F function)
{
    unsigned result = 0, mask = ~0u >> (32 - BITS);
    for (int at = 0; at < 32; at += BITS) {
        int x = SIGNED ? int(a << (32 - BITS - at)) >> (32 - BITS) : int(a >> at & mask);
        int y = SIGNED ? int(b << (32 - BITS - at)) >> (32 - BITS) : int(b >> at & mask);
        result |= (unsigned(function(x, y)) & mask) << at;
    }
    return result;
}

template <int BITS, bool SIGNED> KOPS_HOST int kops_host_saturated(int value)
{
    constexpr int low = SIGNED ? -(1 << (BITS - 1)) : 0, high = SIGNED ? (1 << (BITS - 1)) - 1 : (1 << BITS) - 1;
    return value < low ? low : value > high ? high : value;
}

// NAME2 and NAME4 with VALUE of the lanes x and y; SAT cuts a number to the nearest that a lane holds.
#define KOPS_HOST_SIMD_OF(NAME, BITS, SIGNED, VALUE)                                                                   \
    KOPS_HOST unsigned NAME(unsigned a, unsigned b)                                                                    \
    {                                                                                                                  \
        constexpr auto SAT = kops_host_saturated<BITS, SIGNED>;                                                        \
        (void)SAT;                                                                                                     \
        return kops_host_lanes_of<BITS, SIGNED>(a, b, [=](int x, int y) { return VALUE; });                            \
    }
#define KOPS_HOST_SIMD(NAME, SIGNED, VALUE)                                                                            \
    KOPS_HOST_SIMD_OF(NAME##2, 16, SIGNED, VALUE)                                                                      \
    KOPS_HOST_SIMD_OF(NAME##4, 8, SIGNED, VALUE)
#define KOPS_HOST_SIMD_UNARY(NAME, VALUE)                                                                              \
    KOPS_HOST_SIMD(kops_host##NAME, true, ((void)y, VALUE))                                                            \
    KOPS_HOST unsigned NAME##2(unsigned a)                                                                             \
    {                                                                                                                  \
        return kops_host##NAME##2(a, 0);                                                                               \
    }                                                                                                                  \
    KOPS_HOST unsigned NAME##4(unsigned a)                                                                             \
    {                                                                                                                  \
        return kops_host##NAME##4(a, 0);                                                                               \
    }
// A comparison as a mask and as 0 or 1.
#define KOPS_HOST_SIMD_COMPARISON(NAME, SIGNED, OP)                                                                    \
    KOPS_HOST_SIMD(__vcmp##NAME, SIGNED, x OP y ? -1 : 0)                                                              \
    KOPS_HOST_SIMD(__vset##NAME, SIGNED, x OP y ? 1 : 0)

KOPS_HOST_SIMD_UNARY(__vabs, x < 0 ? -x : x)
KOPS_HOST_SIMD_UNARY(__vabsss, SAT(x < 0 ? -x : x))
KOPS_HOST_SIMD_UNARY(__vneg, -x)
KOPS_HOST_SIMD_UNARY(__vnegss, SAT(-x))
KOPS_HOST_SIMD(__vadd, false, x + y)
KOPS_HOST_SIMD(__vaddss, true, SAT(x + y))
KOPS_HOST_SIMD(__vaddus, false, SAT(x + y))
KOPS_HOST_SIMD(__vsub, false, x - y)
KOPS_HOST_SIMD(__vsubss, true, SAT(x - y))
KOPS_HOST_SIMD(__vsubus, false, SAT(x - y))
KOPS_HOST_SIMD(__vavgs, true, (x + y + (x + y >= 0)) >> 1)
KOPS_HOST_SIMD(__vavgu, false, (x + y + 1) >> 1)
KOPS_HOST_SIMD(__vhaddu, false, (x + y) >> 1)
KOPS_HOST_SIMD(__vabsdiffs, true, x > y ? x - y : y - x)
KOPS_HOST_SIMD(__vabsdiffu, false, x > y ? x - y : y - x)
KOPS_HOST_SIMD(__vmaxs, true, x > y ? x : y)
KOPS_HOST_SIMD(__vmaxu, false, x > y ? x : y)
KOPS_HOST_SIMD(__vmins, true, x < y ? x : y)
KOPS_HOST_SIMD(__vminu, false, x < y ? x : y)
KOPS_HOST_SIMD_COMPARISON(eq, false, ==)
KOPS_HOST_SIMD_COMPARISON(ne, false, !=)
KOPS_HOST_SIMD_COMPARISON(ges, true, >=)
KOPS_HOST_SIMD_COMPARISON(geu, false, >=)
KOPS_HOST_SIMD_COMPARISON(gts, true, >)
KOPS_HOST_SIMD_COMPARISON(gtu, false, >)
KOPS_HOST_SIMD_COMPARISON(les, true, <=)
KOPS_HOST_SIMD_COMPARISON(leu, false, <=)
KOPS_HOST_SIMD_COMPARISON(lts, true, <)
KOPS_HOST_SIMD_COMPARISON(ltu, false, <)

// Sums of absolute differences.
#define KOPS_HOST_SIMD_SAD(SIGN)                                                                                       \
    KOPS_HOST unsigned __vsad##SIGN##2(unsigned a, unsigned b)                                                         \
    {                                                                                                                  \
        unsigned d = __vabsdiff##SIGN##2(a, b);                                                                        \
        return (d & 0xffffu) + (d >> 16);                                                                              \
    }                                                                                                                  \
    KOPS_HOST unsigned __vsad##SIGN##4(unsigned a, unsigned b)                                                         \
    {                                                                                                                  \
        unsigned d = __vabsdiff##SIGN##4(a, b);                                                                        \
        return (d & 0xffu) + (d >> 8 & 0xffu) + (d >> 16 & 0xffu) + (d >> 24);                                         \
    }
KOPS_HOST_SIMD_SAD(s)
KOPS_HOST_SIMD_SAD(u)

// Of dynamic programming: the larger and the smaller of sums and of three numbers, at least 0 with _relu, and which it
// was.
#define KOPS_HOST_DPX_WORDS(T, WORD, WHICH, OP)                                                                        \
    KOPS_HOST T __viadd##WHICH##_##WORD(T a, T b, T c)                                                                 \
    {                                                                                                                  \
        T sum = T(unsigned(a) + unsigned(b));                                                                          \
        return sum OP c ? sum : c;                                                                                     \
    }                                                                                                                  \
    KOPS_HOST T __vi##WHICH##3_##WORD(T a, T b, T c)                                                                   \
    {                                                                                                                  \
        T first = a OP b ? a : b;                                                                                      \
        return first OP c ? first : c;                                                                                 \
    }                                                                                                                  \
    KOPS_HOST T __vib##WHICH##_##WORD(T a, T b, bool *const is_first)                                                  \
    {                                                                                                                  \
        *is_first = a OP## = b;                                                                                        \
        return a OP b ? a : b;                                                                                         \
    }
#define KOPS_HOST_DPX_PAIRS(WORD, SIGN, WHICH)                                                                         \
    KOPS_HOST unsigned __viadd##WHICH##_##WORD(unsigned a, unsigned b, unsigned c)                                     \
    {                                                                                                                  \
        return __v##WHICH##SIGN##2(__vadd2(a, b), c);                                                                  \
    }                                                                                                                  \
    KOPS_HOST unsigned __vi##WHICH##3_##WORD(unsigned a, unsigned b, unsigned c)                                       \
    {                                                                                                                  \
        return __v##WHICH##SIGN##2(__v##WHICH##SIGN##2(a, b), c);                                                      \
    }                                                                                                                  \
    KOPS_HOST unsigned __vib##WHICH##_##WORD(unsigned a, unsigned b, bool *const high_first, bool *const low_first)    \
    {                                                                                                                  \
        unsigned result = __v##WHICH##SIGN##2(a, b);                                                                   \
        *high_first = result >> 16 == a >> 16;                                                                         \
        *low_first = (result & 0xffffu) == (a & 0xffffu);                                                              \
        return result;                                                                                                 \
    }
#define KOPS_HOST_DPX_RELU(WHICH)                                                                                      \
    KOPS_HOST int __viadd##WHICH##_s32_relu(int a, int b, int c)                                                       \
    {                                                                                                                  \
        return max(__viadd##WHICH##_s32(a, b, c), 0);                                                                  \
    }                                                                                                                  \
    KOPS_HOST int __vi##WHICH##3_s32_relu(int a, int b, int c)                                                         \
    {                                                                                                                  \
        return max(__vi##WHICH##3_s32(a, b, c), 0);                                                                    \
    }                                                                                                                  \
    KOPS_HOST int __vi##WHICH##_s32_relu(int a, int b)                                                                 \
    {                                                                                                                  \
        return max(WHICH(a, b), 0);                                                                                    \
    }                                                                                                                  \
    KOPS_HOST unsigned __viadd##WHICH##_s16x2_relu(unsigned a, unsigned b, unsigned c)                                 \
    {                                                                                                                  \
        return __vmaxs2(__viadd##WHICH##_s16x2(a, b, c), 0);                                                           \
    }                                                                                                                  \
    KOPS_HOST unsigned __vi##WHICH##3_s16x2_relu(unsigned a, unsigned b, unsigned c)                                   \
    {                                                                                                                  \
        return __vmaxs2(__vi##WHICH##3_s16x2(a, b, c), 0);                                                             \
    }                                                                                                                  \
    KOPS_HOST unsigned __vi##WHICH##_s16x2_relu(unsigned a, unsigned b)                                                \
    {                                                                                                                  \
        return __vmaxs2(__v##WHICH##s2(a, b), 0);                                                                      \
    }

KOPS_HOST_DPX_WORDS(int, s32, max, >)
KOPS_HOST_DPX_WORDS(unsigned, u32, max, >)
KOPS_HOST_DPX_WORDS(int, s32, min, <)
KOPS_HOST_DPX_WORDS(unsigned, u32, min, <)
KOPS_HOST_DPX_PAIRS(s16x2, s, max)
KOPS_HOST_DPX_PAIRS(u16x2, u, max)
KOPS_HOST_DPX_PAIRS(s16x2, s, min)
KOPS_HOST_DPX_PAIRS(u16x2, u, min)
KOPS_HOST_DPX_RELU(max)
KOPS_HOST_DPX_RELU(min)

#undef KOPS_HOST_SIMD_OF
#undef KOPS_HOST_SIMD
#undef KOPS_HOST_SIMD_UNARY
#undef KOPS_HOST_SIMD_COMPARISON
#undef KOPS_HOST_SIMD_SAD
#undef KOPS_HOST_DPX_WORDS
#undef KOPS_HOST_DPX_PAIRS
#undef KOPS_HOST_DPX_RELU

// Products of two numbers of 16 bits, or of four of 8, summed up.
#define KOPS_HOST_DOT(T, HALF, BYTE, PAIR, FOUR)                                                                       \
    KOPS_HOST T __dp4a(T a, T b, T c)                                                                                  \
    {                                                                                                                  \
        unsigned sum = unsigned(c);                                                                                    \
        for (int i = 0; i < 32; i += 8)                                                                                \
            sum += unsigned(int(BYTE(a >> i)) * int(BYTE(b >> i)));                                                    \
        return T(sum);                                                                                                 \
    }                                                                                                                  \
    KOPS_HOST T __dp2a_lo(T a, T b, T c)                                                                               \
    {                                                                                                                  \
        return T(unsigned(int(HALF(a)) * int(BYTE(b))) + unsigned(int(HALF(a >> 16)) * int(BYTE(b >> 8))) +            \
                 unsigned(c));                                                                                         \
    }                                                                                                                  \
    KOPS_HOST T __dp2a_hi(T a, T b, T c)                                                                               \
    {                                                                                                                  \
        return __dp2a_lo(a, T(b >> 16), c);                                                                            \
    }                                                                                                                  \
    KOPS_HOST T __dp4a(FOUR a, FOUR b, T c)                                                                            \
    {                                                                                                                  \
        return __dp4a(kops_host_bits_as<T>(a), kops_host_bits_as<T>(b), c);                                            \
    }                                                                                                                  \
    KOPS_HOST T __dp2a_lo(PAIR a, FOUR b, T c)                                                                         \
    {                                                                                                                  \
        return __dp2a_lo(kops_host_bits_as<T>(a), kops_host_bits_as<T>(b), c);                                         \
    }                                                                                                                  \
    KOPS_HOST T __dp2a_hi(PAIR a, FOUR b, T c)                                                                         \
    {                                                                                                                  \
        return __dp2a_hi(kops_host_bits_as<T>(a), kops_host_bits_as<T>(b), c);                                         \
    }

template <typename To, typename From> KOPS_HOST To kops_host_bits_as(From value)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To result;
    __builtin_memcpy(&result, &value, sizeof result);
    return result;
}

KOPS_HOST_DOT(int, short, (signed char), short2, char4)
KOPS_HOST_DOT(unsigned, (unsigned short), (unsigned char), ushort2, uchar4)

#undef KOPS_HOST_DOT

#endif

/* Vectors of VECTOR_BYTES, conversions on them, and the elementwise loops. Compiled once per instruction set. The
 * arithmetic uses the compiler's vector types; intrinsics are for the operations that these do not have. */
#include <string.h>

#include "convert.h"
#include "kernels.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define LANES_F32 (VECTOR_BYTES / 4)
#define LANES_F64 (VECTOR_BYTES / 8)
#define INLINE    static inline __attribute__((always_inline))

typedef float v_f32 __attribute__((vector_size(VECTOR_BYTES)));
typedef double v_f64 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t v_u32 __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t v_i32 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t v_u16 __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint8_t v_bytes __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t v_words __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t v_u64 __attribute__((vector_size(VECTOR_BYTES)));

/* ---- loads and stores of a vector; f16 and bf16 are f32 in registers ---- */

INLINE v_f32 get_f32(const float *p)
{
    v_f32 v;

    memcpy(&v, p, sizeof(v));
    return v;
}

INLINE v_f64 get_f64(const double *p)
{
    v_f64 v;

    memcpy(&v, p, sizeof(v));
    return v;
}

INLINE v_u16 get_u16(const uint16_t *p)
{
    v_u16 v;

    memcpy(&v, p, sizeof(v));
    return v;
}

#define DEFINE_GET(name, type, vector)                                                                                 \
    INLINE vector name(const type *p)                                                                                  \
    {                                                                                                                  \
        vector v;                                                                                                      \
                                                                                                                       \
        memcpy(&v, p, sizeof(v));                                                                                      \
        return v;                                                                                                      \
    }

DEFINE_GET(get_bytes, uint8_t, v_bytes)
DEFINE_GET(get_words, uint16_t, v_words)
DEFINE_GET(get_u32, uint32_t, v_u32)
DEFINE_GET(get_u64, uint64_t, v_u64)

INLINE v_u32 choose(v_i32 mask, v_u32 yes, v_u32 no)
{
    return ((v_u32)mask & yes) | (~(v_u32)mask & no);
}

INLINE v_f32 get_bf16(const uint16_t *p)
{
    return (v_f32)(__builtin_convertvector(get_u16(p), v_u32) << 16);
}

INLINE v_u16 round_bf16(v_f32 x)
{
    v_u32 bits = (v_u32)x, quiet = bits >> 16 | 0x40U, rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
    v_i32 nan = (bits & 0x7fffffffU) > 0x7f800000U;

    return __builtin_convertvector(choose(nan, quiet, rounded), v_u16);
}

#if VECTOR_BYTES == 64
INLINE v_f32 get_f16(const uint16_t *p)
{
    return (v_f32)_mm512_cvtph_ps((__m256i)get_u16(p));
}

INLINE v_u16 round_f16(v_f32 x)
{
    return (v_u16)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif VECTOR_BYTES == 32
INLINE v_f32 get_f16(const uint16_t *p)
{
    return (v_f32)_mm256_cvtph_ps((__m128i)get_u16(p));
}

INLINE v_u16 round_f16(v_f32 x)
{
    return (v_u16)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#else
/* As in convert.h, with masks for branches. */
INLINE v_f32 get_f16(const uint16_t *p)
{
    v_u32 h = __builtin_convertvector(get_u16(p), v_u32), sign = (h & 0x8000U) << 16, magnitude = h & 0x7fffU;
    v_u32 tiny = (v_u32)(__builtin_convertvector((v_i32)magnitude, v_f32) * 0x1p-24f);
    v_u32 normal = (magnitude << 13) + (112U << 23);
    v_u32 special = 0x7f800000U | magnitude << 13 | ((v_u32)(magnitude > 0x7c00U) & 0x400000U);

    return (v_f32)(sign | choose(magnitude < 0x0400U, tiny, choose(magnitude < 0x7c00U, normal, special)));
}

INLINE v_u16 round_f16(v_f32 x)
{
    v_u32 bits = (v_u32)x, sign = bits >> 16 & 0x8000U, magnitude = bits & 0x7fffffffU;
    v_u32 nan = 0x7e00U | (magnitude >> 13 & 0x3ffU);
    v_u32 tiny = (v_u32)((v_f32)magnitude + 0.5f) - 0x3f000000U;
    v_u32 small = magnitude - (112U << 23), normal = (small + 0xfffU + (small >> 13 & 1U)) >> 13;
    v_u32 special = choose(magnitude > 0x7f800000U, nan, (v_u32){0} + 0x7c00U);

    return __builtin_convertvector(
        sign | choose(magnitude < 0x38800000U, tiny, choose(magnitude < 0x47800000U, normal, special)), v_u16);
}
#endif

INLINE void put(void *p, const void *v, size_t bytes)
{
    memcpy(p, v, bytes);
}

/* Past the caches; p is aligned to `bytes`. Where the target has no such store, an ordinary one. */
INLINE void put_bypass(void *p, const void *v, size_t bytes)
{
#ifdef __x86_64__
#if VECTOR_BYTES == 64
    if (bytes == 64) {
        _mm512_stream_si512((__m512i *)p, _mm512_loadu_si512(v));
        return;
    }
#endif
#if VECTOR_BYTES >= 32
    if (bytes == 32) {
        _mm256_stream_si256((__m256i *)p, _mm256_loadu_si256((const __m256i *)v));
        return;
    }
#endif
    if (bytes == 16) {
        _mm_stream_si128((__m128i *)p, _mm_loadu_si128((const __m128i *)v));
        return;
    }
    if (bytes == 8) {
        long long x;

        memcpy(&x, v, sizeof(x));
        _mm_stream_si64((long long *)p, x);
        return;
    }
#endif
    memcpy(p, v, bytes);
}

INLINE void bypass_end(void)
{
#ifdef __x86_64__
    _mm_sfence(); /* such stores are not ordered with the completion flag's */
#endif
}

/* ---- the loops ---- */

#define SAME(v) (v)

/* An op's arithmetic, on numbers and on vectors of them; EXPRESSION_<NAME> for each op of OP_ARITHMETIC. */
#define EXPRESSION_ADD(a, b)        ((a) + (b))
#define EXPRESSION_ADD_SQUARE(a, b) (((a) + (b)) * ((a) + (b)))
#define EXPRESSION_SQUARE(a, b)     ((void)(b), (a) * (a))
#define EXPRESSION_SUB_SQUARE(a, b) (((a) - (b)) * ((a) - (b)))

/* One small integer, as a number that does not overflow: the product of two uint16_t would be an int. */
#define AS_U32(x) ((uint32_t)(x))
#define AS_U8(x)  ((uint8_t)(x))
#define AS_U16(x) ((uint16_t)(x))

/* Scalars to the first aligned store where the caches are bypassed, vectors in pairs, scalars at the end. `type` is
 * the element, `lanes` a vector's, get/put_form between memory and register. */
#define DEFINE_ELEMENTWISE(name, type, vector, lanes, get, round, stored, one, back, op, inputs)                       \
    static void name(void *out_, const void *a_, const void *b_, size_t n, bool bypass)                                \
    {                                                                                                                  \
        const type *a = a_, *b = (inputs) > 1 ? b_ : a_;                                                               \
        type *out = out_;                                                                                              \
        size_t i = 0;                                                                                                  \
                                                                                                                       \
        if (bypass) {                                                                                                  \
            for (; i < n && ((uintptr_t)(out + i) & (VECTOR_BYTES - 1)); i++)                                          \
                out[i] = back(op(one(a[i]), one(b[i])));                                                               \
            for (; i + 2 * lanes <= n; i += 2 * lanes) {                                                               \
                stored x = round(op(get(a + i), get(b + i)));                                                          \
                stored y = round(op(get(a + i + lanes), get(b + i + lanes)));                                          \
                                                                                                                       \
                put_bypass(out + i, &x, sizeof(x));                                                                    \
                put_bypass(out + i + lanes, &y, sizeof(y));                                                            \
            }                                                                                                          \
            bypass_end();                                                                                              \
        }                                                                                                              \
        for (; i + 2 * lanes <= n; i += 2 * lanes) {                                                                   \
            stored x = round(op(get(a + i), get(b + i)));                                                              \
            stored y = round(op(get(a + i + lanes), get(b + i + lanes)));                                              \
                                                                                                                       \
            put(out + i, &x, sizeof(x));                                                                               \
            put(out + i + lanes, &y, sizeof(y));                                                                       \
        }                                                                                                              \
        for (; i < n; i++)                                                                                             \
            out[i] = back(op(one(a[i]), one(b[i])));                                                                   \
    }

#define DEFINE_FLOATS(name, op, inputs)                                                                                \
    DEFINE_ELEMENTWISE(name##_f32, float, v_f32, LANES_F32, get_f32, SAME, v_f32, SAME, SAME, op, inputs)              \
    DEFINE_ELEMENTWISE(name##_f64, double, v_f64, LANES_F64, get_f64, SAME, v_f64, SAME, SAME, op, inputs)             \
    DEFINE_ELEMENTWISE(name##_f16, uint16_t, v_f32, LANES_F32, get_f16, round_f16, v_u16, f16_to_f32, f32_to_f16, op,  \
                       inputs)                                                                                         \
    DEFINE_ELEMENTWISE(name##_bf16, uint16_t, v_f32, LANES_F32, get_bf16, round_bf16, v_u16, bf16_to_f32, f32_to_bf16, \
                       op, inputs)

/* Unsigned ones, for signed ones, too. */
#define DEFINE_NUMBERS(name, op, inputs)                                                                               \
    DEFINE_FLOATS(name, op, inputs)                                                                                    \
    DEFINE_ELEMENTWISE(name##_u8, uint8_t, v_bytes, VECTOR_BYTES, get_bytes, SAME, v_bytes, AS_U32, AS_U8, op, inputs) \
    DEFINE_ELEMENTWISE(name##_u16, uint16_t, v_words, VECTOR_BYTES / 2, get_words, SAME, v_words, AS_U32, AS_U16, op,  \
                       inputs)                                                                                         \
    DEFINE_ELEMENTWISE(name##_u32, uint32_t, v_u32, VECTOR_BYTES / 4, get_u32, SAME, v_u32, SAME, SAME, op, inputs)    \
    DEFINE_ELEMENTWISE(name##_u64, uint64_t, v_u64, VECTOR_BYTES / 8, get_u64, SAME, v_u64, SAME, SAME, op, inputs)

/* The bits of elements of that size; `out` may be exactly `a`. */
#define DEFINE_COPY(name, type)                                                                                        \
    static void name(void *out_, const void *a_, const void *b, size_t n, bool bypass)                                 \
    {                                                                                                                  \
        const unsigned char *a = a_;                                                                                   \
        unsigned char *out = out_;                                                                                     \
        size_t i = 0, bytes = n * sizeof(type);                                                                        \
                                                                                                                       \
        (void)b;                                                                                                       \
        if (bypass && bytes >= VECTOR_BYTES) {                                                                         \
            for (; (uintptr_t)(out + i) & (VECTOR_BYTES - 1); i++)                                                     \
                out[i] = a[i];                                                                                         \
            for (; i + VECTOR_BYTES <= bytes; i += VECTOR_BYTES)                                                       \
                put_bypass(out + i, a + i, VECTOR_BYTES);                                                              \
            bypass_end();                                                                                              \
        }                                                                                                              \
        if (out != a)                                                                                                  \
            memcpy(out + i, a + i, bytes - i);                                                                         \
    }

DEFINE_COPY(copy_8, uint8_t)
DEFINE_COPY(copy_16, uint16_t)
DEFINE_COPY(copy_32, uint32_t)
DEFINE_COPY(copy_64, uint64_t)

#define X(WITH, NAME, name, inputs, dtypes) DEFINE_##dtypes(name, EXPRESSION_##NAME, inputs)
OP_ARITHMETIC(X, )
#undef X

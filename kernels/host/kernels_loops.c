/* The inner loops for one instruction set. Compiled once for each set, with the macros KERNELS (its table),
 * KERNELS_NAME and VECTOR_BYTES. Arithmetic uses the compiler's vector types, and intrinsics for operations that these
 * lack. */
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

#define DEFINE_GET(name, type, vector)                                                                                 \
    INLINE vector name(const type *p)                                                                                  \
    {                                                                                                                  \
        vector v;                                                                                                      \
                                                                                                                       \
        memcpy(&v, p, sizeof(v));                                                                                      \
        return v;                                                                                                      \
    }

DEFINE_GET(get_f32, float, v_f32)
DEFINE_GET(get_f64, double, v_f64)
DEFINE_GET(get_bytes, uint8_t, v_bytes)
DEFINE_GET(get_u16, uint16_t, v_u16)
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
/* Converts as convert.h does, with masks in place of branches. */
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

/* Stores past the caches, if the target has such a store. p is aligned to `bytes`. */
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
    _mm_sfence(); /* orders the stores past the caches before the completion flag's */
#endif
}

/* ---- ops on single elements ---- */

#define SAME(v) (v)

/* EXPRESSION_<NAME>: the arithmetic of each op of OP_ARITHMETIC, on numbers and on vectors. */
#define EXPRESSION_ADD(a, b)        ((a) + (b))
#define EXPRESSION_ADD_SQUARE(a, b) (((a) + (b)) * ((a) + (b)))
#define EXPRESSION_SQUARE(a, b)     ((void)(b), (a) * (a))
#define EXPRESSION_SUB_SQUARE(a, b) (((a) - (b)) * ((a) - (b)))

/* AS_U32 widens small integers: the product of two uint16_t would be an int, which overflows. */
#define AS_U32(x) ((uint32_t)(x))
#define AS_U8(x)  ((uint8_t)(x))
#define AS_U16(x) ((uint16_t)(x))

/* Where the caches are bypassed, scalars come first, up to the first aligned store; then vectors in pairs, then
 * scalars. `type`: an element; `lanes`: elements of a vector; get/put_form: between memory and register. */
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

/* Signed integers use the kernels of unsigned ones. */
#define DEFINE_NUMBERS(name, op, inputs)                                                                               \
    DEFINE_FLOATS(name, op, inputs)                                                                                    \
    DEFINE_ELEMENTWISE(name##_u8, uint8_t, v_bytes, VECTOR_BYTES, get_bytes, SAME, v_bytes, AS_U32, AS_U8, op, inputs) \
    DEFINE_ELEMENTWISE(name##_u16, uint16_t, v_words, VECTOR_BYTES / 2, get_words, SAME, v_words, AS_U32, AS_U16, op,  \
                       inputs)                                                                                         \
    DEFINE_ELEMENTWISE(name##_u32, uint32_t, v_u32, VECTOR_BYTES / 4, get_u32, SAME, v_u32, SAME, SAME, op, inputs)    \
    DEFINE_ELEMENTWISE(name##_u64, uint64_t, v_u64, VECTOR_BYTES / 8, get_u64, SAME, v_u64, SAME, SAME, op, inputs)

/* Copies elements of that size bit by bit; `out` may be exactly `a`. */
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

/* ---- gemm: conversions of blocks to and from the dtype in which gemm computes ---- */

#define DEFINE_LOAD(name, type, computed, vector, lanes, get, one)                                                     \
    static void load_##name(void *into_, const void *from_, size_t rows, size_t columns, ptrdiff_t row,                \
                            ptrdiff_t column)                                                                          \
    {                                                                                                                  \
        const type *from = from_;                                                                                      \
        computed *into = into_;                                                                                        \
                                                                                                                       \
        for (size_t r = 0; r < rows; r++, into += columns, from += row) {                                              \
            size_t c = 0;                                                                                              \
                                                                                                                       \
            for (; column == 1 && c + lanes <= columns; c += lanes) {                                                  \
                vector v = get(from + c);                                                                              \
                                                                                                                       \
                memcpy(into + c, &v, sizeof(v));                                                                       \
            }                                                                                                          \
            for (; c < columns; c++)                                                                                   \
                into[c] = one(from[(ptrdiff_t)c * column]);                                                            \
        }                                                                                                              \
    }

#define DEFINE_STORE(name, type, computed, vector, lanes, get, get_sums, round, stored, one, back)                     \
    static void store_##name(void *out_, ptrdiff_t row, ptrdiff_t column, const void *sums_, size_t rows,              \
                             size_t columns, double alpha_, double beta_)                                              \
    {                                                                                                                  \
        const computed alpha = (computed)alpha_, beta = (computed)beta_, *sums = sums_;                                \
        type *out = out_;                                                                                              \
                                                                                                                       \
        for (size_t r = 0; r < rows; r++, sums += columns, out += row) {                                               \
            size_t c = 0;                                                                                              \
                                                                                                                       \
            for (; column == 1 && c + lanes <= columns; c += lanes) {                                                  \
                vector v = get_sums(sums + c) * alpha;                                                                 \
                stored s;                                                                                              \
                                                                                                                       \
                if (beta != 0)                                                                                         \
                    v += beta * get(out + c);                                                                          \
                s = round(v);                                                                                          \
                put(out + c, &s, sizeof(s));                                                                           \
            }                                                                                                          \
            for (; c < columns; c++) {                                                                                 \
                type *o = out + (ptrdiff_t)c * column;                                                                 \
                                                                                                                       \
                *o = back(beta != 0 ? alpha * sums[c] + beta * one(*o) : alpha * sums[c]);                             \
            }                                                                                                          \
        }                                                                                                              \
    }

DEFINE_LOAD(f32, float, float, v_f32, LANES_F32, get_f32, SAME)
DEFINE_LOAD(f64, double, double, v_f64, LANES_F64, get_f64, SAME)
DEFINE_LOAD(f16, uint16_t, float, v_f32, LANES_F32, get_f16, f16_to_f32)
DEFINE_LOAD(bf16, uint16_t, float, v_f32, LANES_F32, get_bf16, bf16_to_f32)

DEFINE_STORE(f32, float, float, v_f32, LANES_F32, get_f32, get_f32, SAME, v_f32, SAME, SAME)
DEFINE_STORE(f64, double, double, v_f64, LANES_F64, get_f64, get_f64, SAME, v_f64, SAME, SAME)
DEFINE_STORE(f16, uint16_t, float, v_f32, LANES_F32, get_f16, get_f32, round_f16, v_u16, f16_to_f32, f32_to_f16)
DEFINE_STORE(bf16, uint16_t, float, v_f32, LANES_F32, get_bf16, get_f32, round_bf16, v_u16, bf16_to_f32, f32_to_bf16)

/* ---- gemm: the product ---- */

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum {
    TILE_ROWS = 4,   /* rows of sums in registers, two vectors wide */
    TILE_DEPTH = 128 /* rows of b, two vectors wide, that stay in the L1 cache during the loop over rows of a */
};

#define DEFINE_MULTIPLY(name, type, vector, lanes, get)                                                                \
    INLINE void tile_##name(const size_t rows, type *out, const type *a, vector(*b)[2], size_t n, size_t k,            \
                            size_t depth)                                                                              \
    {                                                                                                                  \
        vector sums[TILE_ROWS][2] = {0};                                                                               \
                                                                                                                       \
        for (size_t p = 0; p < depth; p++)                                                                             \
            UNROLL for (size_t i = 0; i < rows; i++)                                                                   \
            {                                                                                                          \
                sums[i][0] += a[i * k + p] * b[p][0];                                                                  \
                sums[i][1] += a[i * k + p] * b[p][1];                                                                  \
            }                                                                                                          \
        UNROLL for (size_t i = 0; i < rows; i++)                                                                       \
        {                                                                                                              \
            sums[i][0] += get(out + i * n);                                                                            \
            sums[i][1] += get(out + i * n + lanes);                                                                    \
            put(out + i * n, sums[i], sizeof(sums[i]));                                                                \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    static void multiply_##name(void *out_, const void *a_, const void *b_, size_t m, size_t n, size_t k)              \
    {                                                                                                                  \
        const type *a = a_, *b = b_;                                                                                   \
        type *out = out_;                                                                                              \
        vector part[TILE_DEPTH][2];                                                                                    \
                                                                                                                       \
        for (size_t p0 = 0; p0 < k; p0 += TILE_DEPTH, a += TILE_DEPTH, b += TILE_DEPTH * n) {                          \
            const size_t depth = k - p0 < TILE_DEPTH ? k - p0 : TILE_DEPTH;                                            \
            size_t j = 0;                                                                                              \
                                                                                                                       \
            for (; j + 2 * lanes <= n; j += 2 * lanes) {                                                               \
                size_t i = 0;                                                                                          \
                                                                                                                       \
                for (size_t p = 0; p < depth; p++)                                                                     \
                    memcpy(part[p], b + p * n + j, sizeof(part[p]));                                                   \
                for (; i + TILE_ROWS <= m; i += TILE_ROWS)                                                             \
                    tile_##name(TILE_ROWS, out + i * n + j, a + i * k, part, n, k, depth);                             \
                for (; i < m; i++)                                                                                     \
                    tile_##name(1, out + i * n + j, a + i * k, part, n, k, depth);                                     \
            }                                                                                                          \
            for (size_t i = 0; i < m && j < n; i++)                                                                    \
                for (size_t p = 0; p < depth; p++)                                                                     \
                    for (size_t c = j; c < n; c++)                                                                     \
                        out[i * n + c] += a[i * k + p] * b[p * n + c];                                                 \
        }                                                                                                              \
    }

DEFINE_MULTIPLY(f32, float, v_f32, LANES_F32, get_f32)
DEFINE_MULTIPLY(f64, double, v_f64, LANES_F64, get_f64)

/* ---- the table ---- */

#define FLOATS_OF(op) [DTYPE_F32] = op##_f32, [DTYPE_F64] = op##_f64, [DTYPE_F16] = op##_f16, [DTYPE_BF16] = op##_bf16

/* Signed integers use the kernels of unsigned ones, since sums and products have equal bits. */
#define NUMBERS_OF(op)                                                                                                 \
    FLOATS_OF(op), [DTYPE_I8] = op##_u8, [DTYPE_U8] = op##_u8, [DTYPE_I16] = op##_u16, [DTYPE_U16] = op##_u16,         \
                   [DTYPE_I32] = op##_u32, [DTYPE_U32] = op##_u32, [DTYPE_I64] = op##_u64, [DTYPE_U64] = op##_u64

#define COPY_OF(NAME, name, value, size)                                                                               \
    [DTYPE_##NAME] = (size) == 1 ? copy_8 : (size) == 2 ? copy_16 : (size) == 4 ? copy_32 : copy_64,

const struct kernels KERNELS = {
    .name = KERNELS_NAME,
    .elementwise =
        {
#define X(WITH, NAME, name, inputs, dtypes) [OP_##NAME] = {dtypes##_OF(name)},
            OP_ARITHMETIC(X, )
#undef X
                [OP_COPY] = {KOPS_DTYPES(COPY_OF)},
        },
    .load = {FLOATS_OF(load), [DTYPE_F8_E4M3] = kernels_load_e4m3, [DTYPE_F8_E5M2] = kernels_load_e5m2},
    .store = {FLOATS_OF(store)},
    .multiply = {[DTYPE_F32] = multiply_f32, [DTYPE_F64] = multiply_f64},
};

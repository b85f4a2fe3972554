/* gemm's inner loops: packing, the register tile, and writing results. Included after kernels_elementwise.inc.h. */
#include "kernels_micro.inc.h"

/* ---- load: a strided block of any dtype as rows of the type that is computed in ---- */

INLINE void row_f32(float *into, const float *from, size_t n)
{
    memcpy(into, from, n * sizeof(*into));
}

INLINE void row_f64(double *into, const double *from, size_t n)
{
    memcpy(into, from, n * sizeof(*into));
}

#define DEFINE_HALF_ROW(name, get, one)                                                                                \
    INLINE void row_##name(float *into, const uint16_t *from, size_t n)                                                \
    {                                                                                                                  \
        size_t i = 0;                                                                                                  \
                                                                                                                       \
        for (; i + LANES_F32 <= n; i += LANES_F32) {                                                                   \
            v_f32 v = get(from + i);                                                                                   \
                                                                                                                       \
            memcpy(into + i, &v, sizeof(v));                                                                           \
        }                                                                                                              \
        for (; i < n; i++)                                                                                             \
            into[i] = one(from[i]);                                                                                    \
    }

DEFINE_HALF_ROW(f16, get_f16, f16_to_f32)
DEFINE_HALF_ROW(bf16, get_bf16, bf16_to_f32)

#define DEFINE_LOAD(name, type, computed, turn, one)                                                                   \
    static void load_##name(void *into_, size_t ld, const void *from_, size_t rows, size_t columns, ptrdiff_t row,     \
                            ptrdiff_t column)                                                                          \
    {                                                                                                                  \
        const type *from = from_;                                                                                      \
        computed *into = into_;                                                                                        \
                                                                                                                       \
        if (column == 1) {                                                                                             \
            for (size_t r = 0; r < rows; r++)                                                                          \
                row_##name(into + r * ld, from + (ptrdiff_t)r * row, columns);                                         \
            return;                                                                                                    \
        }                                                                                                              \
        if (row == 1) {                                                                                                \
            size_t r = 0;                                                                                              \
                                                                                                                       \
            for (; r + TRANSPOSE_RUN <= rows; r += TRANSPOSE_RUN) {                                                    \
                size_t c = 0;                                                                                          \
                                                                                                                       \
                for (; c + 4 <= columns; c += 4) {                                                                     \
                    computed run[4 * TRANSPOSE_RUN];                                                                   \
                                                                                                                       \
                    UNROLL for (size_t i = 0; i < 4; i++)                                                              \
                        row_##name(run + i * TRANSPOSE_RUN, from + r + (ptrdiff_t)(c + i) * column, TRANSPOSE_RUN);    \
                    UNROLL for (size_t i = 0; i < TRANSPOSE_RUN; i += 4) turn(into + (r + i) * ld + c, ld, run + i);   \
                }                                                                                                      \
                for (; c < columns; c++) {                                                                             \
                    computed run[TRANSPOSE_RUN];                                                                       \
                                                                                                                       \
                    row_##name(run, from + r + (ptrdiff_t)c * column, TRANSPOSE_RUN);                                  \
                    UNROLL for (size_t i = 0; i < TRANSPOSE_RUN; i++) into[(r + i) * ld + c] = run[i];                 \
                }                                                                                                      \
            }                                                                                                          \
            into += r * ld;                                                                                            \
            from += r;                                                                                                 \
            rows -= r;                                                                                                 \
        }                                                                                                              \
        for (size_t r = 0; r < rows; r++)                                                                              \
            for (size_t c = 0; c < columns; c++)                                                                       \
                into[r * ld + c] = one(from[(ptrdiff_t)r * row + (ptrdiff_t)c * column]);                              \
    }

DEFINE_LOAD(f32, float, float, turn_f32, SAME)
DEFINE_LOAD(f64, double, double, turn_f64, SAME)
DEFINE_LOAD(f16, uint16_t, float, turn_f32, f16_to_f32)
DEFINE_LOAD(bf16, uint16_t, float, turn_f32, bf16_to_f32)

/* ---- store ---- */

#define DEFINE_STORE(name, type, computed, vector, lanes, get, round, stored, one, back)                               \
    INLINE void store_row_##name(type *out, const computed *acc, size_t n, computed alpha, computed beta)              \
    {                                                                                                                  \
        size_t i = 0;                                                                                                  \
                                                                                                                       \
        for (; i + lanes <= n; i += lanes) {                                                                           \
            vector v;                                                                                                  \
            stored s;                                                                                                  \
                                                                                                                       \
            memcpy(&v, acc + i, sizeof(v));                                                                            \
            v *= alpha;                                                                                                \
            if (beta != 0)                                                                                             \
                v += beta * get(out + i);                                                                              \
            s = round(v);                                                                                              \
            memcpy(out + i, &s, sizeof(s));                                                                            \
        }                                                                                                              \
        for (; i < n; i++)                                                                                             \
            out[i] = back(beta != 0 ? alpha * acc[i] + beta * one(out[i]) : alpha * acc[i]);                           \
    }                                                                                                                  \
    static void store_##name(void *out_, ptrdiff_t row, ptrdiff_t column, const void *acc_, size_t ld, size_t rows,    \
                             size_t columns, double alpha_, double beta_)                                              \
    {                                                                                                                  \
        const computed alpha = (computed)alpha_, beta = (computed)beta_, *acc = acc_;                                  \
        type *out = out_;                                                                                              \
                                                                                                                       \
        for (size_t r = 0; r < rows; r++, acc += ld) {                                                                 \
            type *o = out + (ptrdiff_t)r * row;                                                                        \
                                                                                                                       \
            if (column == 1) {                                                                                         \
                store_row_##name(o, acc, columns, alpha, beta);                                                        \
                continue;                                                                                              \
            }                                                                                                          \
            for (size_t c = 0; c < columns; c++, o += column)                                                          \
                *o = back(beta != 0 ? alpha * acc[c] + beta * one(*o) : alpha * acc[c]);                               \
        }                                                                                                              \
    }

DEFINE_STORE(f32, float, float, v_f32, LANES_F32, get_f32, SAME, v_f32, SAME, SAME)
DEFINE_STORE(f64, double, double, v_f64, LANES_F64, get_f64, SAME, v_f64, SAME, SAME)
DEFINE_STORE(f16, uint16_t, float, v_f32, LANES_F32, get_f16, round_f16, v_u16, f16_to_f32, f32_to_f16)
DEFINE_STORE(bf16, uint16_t, float, v_f32, LANES_F32, get_bf16, round_bf16, v_u16, bf16_to_f32, f32_to_bf16)

/* ---- the register tile ---- */

#define MULTIPLY_ADD(acc, a, b) ((acc) + (a) * (b))

INLINE float get_one_f32(const unsigned char *p)
{
    float x;

    memcpy(&x, p, sizeof(x));
    return x;
}

INLINE double get_one_f64(const unsigned char *p)
{
    double x;

    memcpy(&x, p, sizeof(x));
    return x;
}

DEFINE_MICRO(f32, float, v_f32, float, v_f32, get_one_f32, get_f32, MULTIPLY_ADD)
DEFINE_MICRO(f64, double, v_f64, double, v_f64, get_one_f64, get_f64, MULTIPLY_ADD)

/* The parts of gemm's inner loops that do not depend on the type: turning squares of elements, and the register tile.
 * Compiled once per instruction set, with its VECTOR_BYTES, MICRO_ROWS, MICRO_STEP and MICRO_VECTORS. */
#include <string.h>

#include "kernels.h"

#ifndef INLINE
#define INLINE static inline __attribute__((always_inline))
#endif

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* Columns that are contiguous in memory, as when a sliver of a row-major A is packed: whole cache lines of
 * TRANSPOSE_RUN elements of four columns are read, and turned in squares of four. */
enum { TRANSPOSE_RUN = 16 };

#ifdef __clang__
#define SHUFFLE(mask, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(mask, a, b, ...) __builtin_shuffle(a, b, (mask){__VA_ARGS__})
#endif

#define DEFINE_TURN(name, type, mask_type)                                                                             \
    typedef type four_##name __attribute__((vector_size(4 * sizeof(type))));                                           \
    typedef mask_type four_mask_##name __attribute__((vector_size(4 * sizeof(type))));                                 \
                                                                                                                       \
    /* into[r·ld + c] = run[c][r] for four r and four c. */                                                           \
    INLINE void turn_##name(type *into, size_t ld, const type *run)                                                    \
    {                                                                                                                  \
        four_##name in[4], low[2], high[2], out[4];                                                                    \
                                                                                                                       \
        UNROLL for (size_t c = 0; c < 4; c++) memcpy(&in[c], run + c * TRANSPOSE_RUN, sizeof(in[c]));                  \
        UNROLL for (size_t c = 0; c < 2; c++)                                                                          \
        {                                                                                                              \
            low[c] = SHUFFLE(four_mask_##name, in[2 * c], in[2 * c + 1], 0, 4, 1, 5);                                  \
            high[c] = SHUFFLE(four_mask_##name, in[2 * c], in[2 * c + 1], 2, 6, 3, 7);                                 \
        }                                                                                                              \
        out[0] = SHUFFLE(four_mask_##name, low[0], low[1], 0, 1, 4, 5);                                                \
        out[1] = SHUFFLE(four_mask_##name, low[0], low[1], 2, 3, 6, 7);                                                \
        out[2] = SHUFFLE(four_mask_##name, high[0], high[1], 0, 1, 4, 5);                                              \
        out[3] = SHUFFLE(four_mask_##name, high[0], high[1], 2, 3, 6, 7);                                              \
        UNROLL for (size_t r = 0; r < 4; r++) memcpy(into + r * ld, &out[r], sizeof(out[r]));                          \
    }

DEFINE_TURN(f32, float, int32_t)
DEFINE_TURN(f64, double, int64_t)

/* ---- the register tile: up to MICRO_ROWS × MICRO_VECTORS accumulators ---- */

/* Lines of A by three base pointers, so that general registers suffice for any stride. */
#define LINE(a, i, row) ((a)[(i) / 3] + ((i) % 3 == 0 ? 0 : (i) % 3 == 1 ? (row) : 2 * (row)))

enum { MICRO_BASES = (MICRO_ROWS + 2) / 3 };

/* `multiply(acc, a, b)` adds a unit of A times a vector of units of B to a vector of sums. */
#define DEFINE_MICRO(name, type, vector, unit, units, get_unit, get_units, multiply)                                   \
    INLINE void micro_rows_##name(const int rows, size_t k, const unsigned char *at, ptrdiff_t row, ptrdiff_t step,    \
                                  const unsigned char *b, ptrdiff_t b_step, type *sums)                                \
    {                                                                                                                  \
        const int lanes = (int)(sizeof(vector) / sizeof(type));                                                        \
        const unsigned char *a[MICRO_BASES];                                                                           \
        vector acc[MICRO_ROWS][MICRO_VECTORS];                                                                         \
                                                                                                                       \
        UNROLL for (int i = 0; i < MICRO_BASES; i++) a[i] = at + 3 * i * row;                                          \
        UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < MICRO_VECTORS; j++) acc[i][j] = (vector){0};  \
        for (; k > 0; k--) {                                                                                           \
            units line[MICRO_VECTORS];                                                                                 \
                                                                                                                       \
            UNROLL for (int j = 0; j < MICRO_VECTORS; j++) line[j] =                                                   \
                get_units((const void *)(b + (size_t)j * sizeof(vector)));                                             \
            UNROLL for (int i = 0; i < rows; i++)                                                                      \
            {                                                                                                          \
                const unit one = get_unit(LINE(a, i, row));                                                            \
                                                                                                                       \
                UNROLL for (int j = 0; j < MICRO_VECTORS; j++) acc[i][j] = multiply(acc[i][j], one, line[j]);          \
            }                                                                                                          \
            UNROLL for (int i = 0; i < MICRO_BASES; i++) a[i] += step;                                                 \
            b += b_step;                                                                                               \
        }                                                                                                              \
        UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < MICRO_VECTORS; j++)                           \
            memcpy(sums + (i * MICRO_VECTORS + j) * lanes, &acc[i][j], sizeof(vector));                                \
    }                                                                                                                  \
    DEFINE_MICRO_ROWS(name, MICRO_STEP, few)                                                                           \
    DEFINE_MICRO_ROWS(name, 2 * MICRO_STEP, more)                                                                      \
    DEFINE_MICRO_ROWS(name, MICRO_ROWS, all)

#define DEFINE_MICRO_ROWS(name, rows, suffix)                                                                          \
    static void micro_##name##_##suffix(size_t k, const void *a, ptrdiff_t row, ptrdiff_t step, const void *b,         \
                                        ptrdiff_t b_step, void *acc)                                                   \
    {                                                                                                                  \
        micro_rows_##name(rows, k, a, row, step, b, b_step, acc);                                                      \
    }

/* The member of struct kernels_gemm. */
#define MICRO(name)                                                                                                    \
    {                                                                                                                  \
        micro_##name##_few, micro_##name##_more, micro_##name##_all                                                    \
    }

/* Packing bf16 as pairs that follow each other along k, for AVX-512 F, BW. Included with VECTOR_BYTES 64. */
#include <immintrin.h>

#include "convert.h"
#include "kernels_micro.inc.h"

enum { LANES = VECTOR_BYTES / 4 };

/* Rows 2r and 2r + 1 side by side; `second` NULL: zeros. */
static void pair_rows(uint32_t *into, const uint16_t *first, const uint16_t *second, size_t columns)
{
    size_t c = 0;

    for (; second && c + LANES <= columns; c += LANES) {
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(first + c)));
        const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(second + c)));

        _mm512_storeu_si512(into + c, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
    for (; c < columns; c++)
        into[c] = first[c] | (second ? (uint32_t)second[c] << 16 : 0);
}

/* Columns whose elements follow each other: a pair is read as one word. */
static void turn_pairs(uint32_t *into, size_t ld, const uint16_t *from, size_t pairs, size_t columns, ptrdiff_t column)
{
    size_t r = 0;

    for (; r + TRANSPOSE_RUN <= pairs; r += TRANSPOSE_RUN) {
        size_t c = 0;

        for (; c + 4 <= columns; c += 4) {
            float run[4 * TRANSPOSE_RUN];

            UNROLL for (size_t i = 0; i < 4; i++)
                memcpy(run + i * TRANSPOSE_RUN, from + 2 * r + (ptrdiff_t)(c + i) * column, 4 * TRANSPOSE_RUN);
            UNROLL for (size_t i = 0; i < TRANSPOSE_RUN; i += 4)
                turn_f32((float *)(void *)(into + (r + i) * ld + c), ld, run + i);
        }
        for (; c < columns; c++)
            for (size_t i = 0; i < TRANSPOSE_RUN; i++)
                memcpy(into + (r + i) * ld + c, from + 2 * (r + i) + (ptrdiff_t)c * column, sizeof(*into));
    }
    for (; r < pairs; r++)
        for (size_t c = 0; c < columns; c++)
            memcpy(into + r * ld + c, from + 2 * r + (ptrdiff_t)c * column, sizeof(*into));
}

static void load_pairs(void *into_, size_t ld, const void *from_, size_t rows, size_t columns, ptrdiff_t row,
                       ptrdiff_t column)
{
    const uint16_t *from = from_;
    const size_t pairs = rows / 2;
    uint32_t *into = into_;
    size_t r = 0;

    if (column == 1) {
        for (; r < pairs; r++)
            pair_rows(into + r * ld, from + 2 * (ptrdiff_t)r * row, from + (2 * (ptrdiff_t)r + 1) * row, columns);
    } else if (row == 1) {
        turn_pairs(into, ld, from, pairs, columns, column);
        r = pairs;
    }
    for (; 2 * r < rows; r++)
        for (size_t c = 0; c < columns; c++) {
            const uint16_t *at = from + 2 * (ptrdiff_t)r * row + (ptrdiff_t)c * column;

            into[r * ld + c] = at[0] | (2 * r + 1 < rows ? (uint32_t)at[row] << 16 : 0);
        }
}

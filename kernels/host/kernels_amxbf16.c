/* gemm's inner loops for bf16 on processors with AMX: a tile register has 16 rows of 16 pairs of bf16 that follow each
 * other along k, and one instruction adds the product of two such tiles to 16 x 16 f32 sums. Four tiles of sums, two of
 * A and two of B are all eight registers. Subnormal numbers count as zero. */
#define VECTOR_BYTES  64
#define MICRO_ROWS    32
#define MICRO_STEP    16
#define MICRO_VECTORS 2
#include "kernels_pairs.inc.h"

enum {
    TILE = 16,      /* rows of a tile, and pairs of a row */
    ROW_BYTES = 64, /* of a tile */
    ACC_BYTES = MICRO_VECTORS * ROW_BYTES
};

/* What ldtilecfg reads: all eight tiles are whole. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} config = {.palette = 1,
            .row_bytes = {ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES},
            .rows = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE}};

static void begin(void)
{
    _tile_loadconfig(&config);
}

/* Frees the tiles: the system need not keep them for the thread. */
static void end(void)
{
    _tile_release();
}

/* The product of 16 rows of A, or of 32. */
INLINE void micro(const bool all, size_t k, const unsigned char *a, ptrdiff_t row, ptrdiff_t step,
                  const unsigned char *b, ptrdiff_t b_step, unsigned char *acc)
{
    _tile_zero(0);
    _tile_zero(1);
    if (all) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (; k > 0; k -= TILE) {
        _tile_loadd(4, a, row);
        _tile_loadd(6, b, b_step);
        _tile_loadd(7, b + ROW_BYTES, b_step);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (all) {
            _tile_loadd(5, a + TILE * row, row);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        a += TILE * step;
        b += TILE * b_step;
    }
    _tile_stored(0, acc, ACC_BYTES);
    _tile_stored(1, acc + ROW_BYTES, ACC_BYTES);
    if (all) {
        _tile_stored(2, acc + TILE * ACC_BYTES, ACC_BYTES);
        _tile_stored(3, acc + TILE * ACC_BYTES + ROW_BYTES, ACC_BYTES);
    }
}

static void micro_few(size_t k, const void *a, ptrdiff_t row, ptrdiff_t step, const void *b, ptrdiff_t b_step,
                      void *acc)
{
    micro(false, k, a, row, step, b, b_step, acc);
}

static void micro_all(size_t k, const void *a, ptrdiff_t row, ptrdiff_t step, const void *b, ptrdiff_t b_step,
                      void *acc)
{
    micro(true, k, a, row, step, b, b_step, acc);
}

/* into[r·ld + p] = the pair of the columns 2p and 2p + 1 of row r. */
static void load_rows(void *into_, size_t ld, const void *from_, size_t rows, size_t columns, ptrdiff_t row,
                      ptrdiff_t column)
{
    const uint16_t *from = from_;
    uint32_t *into = into_;

    if (column == 1) {
        for (size_t r = 0; r < rows; r++)
            memcpy(into + r * ld, from + (ptrdiff_t)r * row, columns * sizeof(*from));
        return;
    }
    for (size_t r = 0; r < rows; r += TILE)
        for (size_t c = 0; c < columns; c += 2 * TILE) {
            const size_t lines = rows - r < TILE ? rows - r : TILE;
            const size_t length = columns - c < 2 * TILE ? columns - c : 2 * TILE;
            uint32_t pairs[TILE * TILE] = {0};

            load_pairs(pairs, TILE, from + (ptrdiff_t)r * row + (ptrdiff_t)c * column, length, lines, column, row);
            for (size_t i = 0; i < lines; i++)
                for (size_t p = 0; p < (length + 1) / 2; p++)
                    into[(r + i) * ld + c / 2 + p] = pairs[p * TILE + i];
        }
}

const struct kernels_gemm kernels_gemm_amxbf16 = {.mr = MICRO_ROWS,
                                                  .nr = MICRO_VECTORS * LANES,
                                                  .mr_step = MICRO_STEP,
                                                  .pair = 2,
                                                  .run = TILE,
                                                  .load = load_pairs,
                                                  .load_rows = load_rows,
                                                  .begin = begin,
                                                  .end = end,
                                                  .micro = {micro_few, micro_all, micro_all}};

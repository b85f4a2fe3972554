/* The kernels that copy matrices for gemm: bits of 2 or 4 bytes, or f32 into pieces of bf16. */
#include <math.h>
#include <string.h>

#include "kernels/cuda/ops/params.h"
#include "standin.h"

static unsigned target_size(unsigned size, unsigned pieces)
{
    return pieces ? 2 : size;
}

/* ---- what is touched ---- */

/* The part's rows and columns, and its batches, as one shape with the strides of either side. */
static unsigned space_of(const struct cuda_ops_repack_part *p, bool target, uint64_t *shape, uint64_t *strides)
{
    shape[0] = target ? p->to_rows : p->rows;
    shape[1] = target ? p->to_columns : p->columns;
    strides[0] = target ? p->to_row : p->row;
    strides[1] = target ? p->to_column : p->column;
    for (unsigned d = 0; d < p->batch_rank; d++) {
        shape[2 + d] = p->batch_shape[d];
        strides[2 + d] = target ? p->to_batch[d] : p->batch[d];
    }
    return 2 + p->batch_rank;
}

/* Every element has its chunk; with pieces, whole chunks lie on boundaries. */
static bool hints_hold(const struct cuda_ops_repack_part *p, unsigned to_size, unsigned pieces)
{
    const uint64_t width = 16 / to_size;
    uint64_t chunks = (p->to_columns + width - 1) / width, count = p->chunks.divisor * p->height.divisor;
    uint64_t bits = p->to | (p->to_rows > 1 ? p->to_row * to_size : 0);

    for (unsigned d = 0; d < p->batch_rank; d++) {
        bits |= p->to_batch[d] * to_size;
        count *= p->batch_shape[d];
    }
    if (pieces && (bits % 16 || p->to_columns % width || p->to_column != 1))
        return false;
    if (p->to_column == 1 && bits % 16)
        chunks++;
    return p->chunks.divisor >= chunks && p->height.divisor == p->to_rows && p->count == count;
}

static bool part_uses(unsigned size, unsigned pieces, const struct cuda_ops_repack_part *p, struct op *op)
{
    const unsigned to_size = target_size(size, pieces);
    uint64_t shape[CUDA_OPS_REPACK_BATCHES + 2], strides[CUDA_OPS_REPACK_BATCHES + 2];
    unsigned rank;

    if (!p->count)
        return true;
    if (p->batch_rank > CUDA_OPS_REPACK_BATCHES || !p->rows || !p->columns || p->rows > p->to_rows ||
        p->columns > p->to_columns || !hints_hold(p, to_size, pieces))
        return false;
    rank = space_of(p, false, shape, strides);
    if (!op_use_strided(op, size, p->from, rank, shape, strides, false))
        return false;
    rank = space_of(p, true, shape, strides);
    for (unsigned i = 0; i < (pieces ? pieces : 1); i++)
        if ((pieces && p->pieces[i] % 8) ||
            !op_use_strided(op, to_size, p->to + p->pieces[i] * to_size, rank, shape, strides, true))
            return false;
    return true;
}

bool repack_uses(unsigned size, unsigned pieces, const struct cuda_ops_repack *p, struct op *op)
{
    return part_uses(size, pieces, &p->parts[0], op) && part_uses(size, pieces, &p->parts[1], op);
}

/* ---- what is computed ---- */

/* x as bf16 numbers: each is what the ones before leave, and counts 1/128 of the one before. */
static void store_pieces(uint64_t to, const uint64_t *pieces, unsigned n, float x)
{
    const bool finite = (x - x) == 0, cut = finite && (float_to_bfloat(x) & 0x7fff) == 0x7f80;
    double rest = (double)x;

    for (unsigned i = 0; i < n; i++) {
        uint16_t piece = finite || i + 1 == n ? float_to_bfloat((float)rest) : 0;

        if (cut && fabs((double)bfloat_to_float(piece)) > fabs(rest))
            piece--; /* towards 0 */
        *(uint16_t *)(uintptr_t)(to + pieces[i] * 2) = piece;
        if (finite)
            rest = (rest - (double)bfloat_to_float(piece)) * 128;
    }
}

static void run_part(unsigned size, unsigned pieces, const struct cuda_ops_repack_part *p)
{
    const unsigned to_size = target_size(size, pieces);
    uint64_t batches = 1;

    for (unsigned d = 0; d < p->batch_rank; d++)
        batches *= p->batch_shape[d];
    for (uint64_t n = 0; p->count && n < batches * p->to_rows * p->to_columns; n++) {
        const uint64_t j = n % p->to_columns, i = n / p->to_columns % p->to_rows;
        uint64_t c = n / p->to_columns / p->to_rows, from = i * p->row + j * p->column,
                 to = i * p->to_row + j * p->to_column;
        const bool inside = i < p->rows && j < p->columns;

        for (unsigned d = 0; d < p->batch_rank; d++) {
            from += c % p->batch_shape[d] * p->batch[d];
            to += c % p->batch_shape[d] * p->to_batch[d];
            c /= p->batch_shape[d];
        }
        if (pieces)
            store_pieces(p->to + to * 2, p->pieces, pieces,
                         inside ? *(const float *)(uintptr_t)(p->from + from * 4) : 0);
        else if (inside)
            memcpy((void *)(uintptr_t)(p->to + to * to_size), (const void *)(uintptr_t)(p->from + from * to_size),
                   to_size);
        else
            memset((void *)(uintptr_t)(p->to + to * to_size), 0, to_size);
    }
}

void repack_run(unsigned size, unsigned pieces, const struct cuda_ops_repack *p)
{
    run_part(size, pieces, &p->parts[0]);
    run_part(size, pieces, &p->parts[1]);
}

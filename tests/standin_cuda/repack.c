/* The kernels that copy matrices for gemm, as plain loops: bits of 2, 4 or 8 bytes, or f32 into pieces of bf16. A file
 * of its own, since the unit tests of the real kernels compare with it. */
#include <math.h>
#include <string.h>

#include "kernels/cuda/ops/params.h"
#include "kernels/host/convert.h"
#include "standin.h"

/* x as bf16 numbers: each is what the ones before leave, and counts 1/128 of the one before. */
static void store_pieces(uint64_t to, const uint64_t *pieces, unsigned n, float x)
{
    const bool finite = (x - x) == 0, cut = finite && (f32_to_bf16(x) & 0x7fff) == 0x7f80;
    double rest = (double)x;

    for (unsigned i = 0; i < n; i++) {
        uint16_t piece = finite || i + 1 == n ? f32_to_bf16((float)rest) : 0;

        if (cut && fabs((double)bf16_to_f32(piece)) > fabs(rest))
            piece--; /* towards 0 */
        *(uint16_t *)(uintptr_t)(to + pieces[i] * 2) = piece;
        if (finite)
            rest = (rest - (double)bf16_to_f32(piece)) * 128;
    }
}

static void run_part(unsigned size, unsigned pieces, const struct cuda_ops_repack_part *p)
{
    const unsigned to_size = pieces ? 2 : size;
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

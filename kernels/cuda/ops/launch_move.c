/* Launches of the kernels that copy pieces of memory, and matrices for gemm. Thread: any. */
#include "plan_launch.h"

/* ---- pieces ---- */

_Static_assert(sizeof(struct cuda_ops_move) <= CUDA_LAUNCH_PARAMS_MAX, "a launch has room for it");
_Static_assert((uint64_t)CUDA_OPS_MOVE_PIECES *CUDA_OPS_MOVE_BYTES <= UINT32_MAX, "tiles are counted in 32 bits");

/* Returns the widest unit of which all addresses and sizes, or-ed in `bits`, are multiples. */
static uint32_t width_of(uint64_t bits)
{
    uint32_t width = CUDA_OPS_PACK_BYTES;

    while (bits % width)
        width /= 2;
    return width;
}

void cuda_ops_move(const struct cuda_ops_range *ranges, unsigned count, struct cuda_launch *ret_launch)
{
    struct cuda_ops_move move = {.count = count};

    for (unsigned i = 0; i < count; i++) {
        const struct cuda_ops_range *r = &ranges[i];
        struct cuda_ops_move_piece *piece = &move.pieces[i];

        piece->from = r->from;
        piece->to = r->to;
        piece->width = width_of(r->from | r->to | r->bytes);
        piece->units = (uint32_t)r->bytes / piece->width;
        move.tiles += (piece->units + CUDA_OPS_THREADS - 1) / CUDA_OPS_THREADS;
        piece->tiles_end = move.tiles;
    }
    cuda_ops_set_launch(ret_launch, "kops_move", "move", move.tiles, &move, sizeof(move));
}

/* ---- matrices ---- */

static const struct {
    const char *kernel;
    size_t size; /* bytes of the target's element */
} kinds[] = {
    [CUDA_OPS_REPACK_2] = {"kops_repack_2", 2},           [CUDA_OPS_REPACK_4] = {"kops_repack_4", 4},
    [CUDA_OPS_REPACK_8] = {"kops_repack_8", 8},           [CUDA_OPS_REPACK_BF16X2] = {"kops_repack_bf16x2", 2},
    [CUDA_OPS_REPACK_BF16X3] = {"kops_repack_bf16x3", 2},
};

_Static_assert(sizeof(struct cuda_ops_repack) <= CUDA_LAUNCH_PARAMS_MAX, "a launch has room for it");

enum { BLOCKS_MAX = 1 << 20 /* most blocks of a part, which loop over its chunks */ };

/* Whether all rows of the target begin on 16-byte boundaries. */
static bool rows_are_aligned(const struct cuda_ops_repack_part *p, size_t size)
{
    uint64_t bits = p->to | (p->to_rows > 1 ? p->to_row * size : 0);

    for (unsigned d = 0; d < p->batch_rank; d++)
        bits |= p->to_batch[d] * size;
    return bits % CUDA_OPS_PACK_BYTES == 0;
}

static uint64_t prepare(struct cuda_ops_repack_part *p, size_t size)
{
    const uint64_t width = CUDA_OPS_PACK_BYTES / size;
    uint64_t chunks, blocks;

    if (!p->to_rows || !p->to_columns) {
        p->count = 0;
        return 0;
    }
    chunks = (p->to_columns + width - 1) / width;
    if (p->to_column == 1 && !rows_are_aligned(p, size))
        chunks++;
    p->chunks = cuda_ops_divider(chunks, true);
    p->height = cuda_ops_divider(p->to_rows, true);
    p->count = chunks * p->to_rows;
    for (unsigned d = 0; d < p->batch_rank; d++)
        p->count *= p->batch_shape[d];
    blocks = (p->count - 1) / CUDA_OPS_THREADS + 1;
    return blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX;
}

void cuda_ops_launch_repack(enum cuda_ops_repack_kind kind, struct cuda_ops_repack *params,
                            struct cuda_launch *ret_launch)
{
    uint64_t second;

    params->first_blocks = prepare(&params->parts[0], kinds[kind].size);
    second = prepare(&params->parts[1], kinds[kind].size);
    cuda_ops_set_launch(ret_launch, kinds[kind].kernel, "repack", params->first_blocks + second, params,
                        sizeof(*params));
}

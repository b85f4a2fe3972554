/* Launches of the kernel that copies several pieces of memory. Thread: any. */
#include "plan_launch.h"

_Static_assert(sizeof(struct cuda_ops_move) <= CUDA_LAUNCH_PARAMS_MAX, "a launch has room for it");
_Static_assert((uint64_t)CUDA_OPS_MOVE_PIECES *CUDA_OPS_MOVE_BYTES <= UINT32_MAX, "tiles are counted in 32 bits");

/* The widest unit that the addresses and the size are multiples of. */
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

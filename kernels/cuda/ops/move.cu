/* Copies several pieces of memory in one launch: small operands between host memory and the device. */
#include "params.h"
#include "stamp.cuh"

template <typename T> __device__ __forceinline__ void move_unit(const cuda_ops_move_piece &piece, uint32_t i)
{
    reinterpret_cast<T *>(piece.to)[i] = reinterpret_cast<const T *>(piece.from)[i];
}

extern "C" __global__ void __launch_bounds__(CUDA_OPS_THREADS) kops_move(const cuda_ops_move p)
{
    stamp_start(p.stamps);
    for (uint32_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        uint32_t n = 0, first = 0;
        while (tile >= p.pieces[n].tiles_end)
            first = p.pieces[n++].tiles_end;
        const cuda_ops_move_piece &piece = p.pieces[n];
        const uint32_t i = (tile - first) * CUDA_OPS_THREADS + threadIdx.x;
        if (i >= piece.units)
            continue;
        switch (piece.width) {
        case 16:
            move_unit<uint4>(piece, i);
            break;
        case 8:
            move_unit<uint64_t>(piece, i);
            break;
        case 4:
            move_unit<uint32_t>(piece, i);
            break;
        case 2:
            move_unit<uint16_t>(piece, i);
            break;
        default:
            move_unit<uint8_t>(piece, i);
        }
    }
    stamp_end(p.stamps);
}

/* What gemm kernels have in common that share the sum over k among the warps of a block, and among the blocks of a cluster:
 * the last steps, in an order that never changes, so that a result never does. */
#ifndef KOPS_CUDA_OPS_GEMM_SPLIT_CUH
#define KOPS_CUDA_OPS_GEMM_SPLIT_CUH

#include "cluster.cuh"
#include "gemm_loop.cuh"

enum { SPLIT_PARTS = 8 /* sums of a tile that a block adds up */ };

/* Tile number `work`, row by row. There are fewer than 2^32: divisions of 64 bits would take longer than all else. */
template <int ROWS, int COLUMNS> __device__ __forceinline__ gemm_tile split_locate(const cuda_ops_gemm &p, uint32_t work)
{
    const uint32_t tiles_n = (uint32_t)p.tiles_n, tiles = (uint32_t)p.tiles_m * tiles_n;
    gemm_tile t = {0, 0, 0, 0, 0};

    if (p.batch_rank) {
        uint32_t batch = work / tiles;
        work -= batch * tiles;
        for (uint32_t d = 0; d < p.batch_rank; d++) {
            const uint32_t shape = (uint32_t)p.batch_shape[d], i = batch % shape;
            batch /= shape;
            t.a += i * p.a.batch[d];
            t.b += i * p.b.batch[d];
            t.out += i * p.out.batch[d];
        }
    }
    const uint32_t row = work / tiles_n;
    t.row = (uint64_t)row * ROWS;
    t.column = (uint64_t)(work - row * tiles_n) * COLUMNS;
    t.a += t.row * p.a.row;
    t.b += t.column * p.b.column;
    return t;
}

template <int SPLIT> __device__ __forceinline__ uint32_t split_rank()
{
    if constexpr (SPLIT > 1)
        return cluster_rank();
    return 0;
}

/* All blocks that have a part in a tile. */
template <int SPLIT> __device__ __forceinline__ void split_barrier()
{
    if constexpr (SPLIT > 1)
        cluster_barrier();
    else
        __syncthreads();
}

/* Behind it nobody reads what the blocks have shared. */
template <int SPLIT> __device__ __forceinline__ void split_end()
{
    if constexpr (SPLIT > 1)
        cluster_barrier_relaxed();
    else
        __syncthreads();
}

/* `part` are SPLIT_PARTS sums of a tile, in rows that are `pitch` elements apart, written by all warps of all blocks. This is
 * shared memory that the block uses for nothing else before the next split_end(). Adds them up and writes the tile, each block
 * a share of it. */
template <typename T, int SPLIT, int ROWS, int COLUMNS, int THREADS>
__device__ __forceinline__ void split_write(const cuda_ops_gemm &p, const gemm_tile &tile, float *part, int pitch,
                                            uint32_t rank)
{
    constexpr int SIZE = ROWS * COLUMNS, SHARE = SIZE / SPLIT;
    const float alpha = (float)p.alpha, beta = (float)p.beta;

    __syncthreads();
    for (int i = threadIdx.x; i < SIZE; i += THREADS) {
        float *first = part + i / COLUMNS * pitch + i % COLUMNS;
        float sum = *first;
#pragma unroll
        for (int w = 1; w < SPLIT_PARTS; w++)
            sum += first[w * ROWS * pitch];
        *first = sum;
    }
    split_barrier<SPLIT>();
    for (int j = threadIdx.x; j < SHARE; j += THREADS) {
        const int i = rank * SHARE + j;
        const uint64_t row = tile.row + i / COLUMNS, column = tile.column + i % COLUMNS;
        const float *first = part + i / COLUMNS * pitch + i % COLUMNS;
        float sum = 0;

        if (row >= p.m || column >= p.n)
            continue;
        if constexpr (SPLIT > 1) {
#pragma unroll
            for (int s = 0; s < SPLIT; s++)
                sum += cluster_load(first, s);
        } else {
            sum = *first;
        }
        T *to = reinterpret_cast<T *>(p.out.address) + tile.out + row * p.out.row + column * p.out.column;
        sum *= alpha;
        *to = element<T>::narrow(beta != 0 ? sum + beta * widen(*to) : sum);
    }
}

#endif

/* What gemm kernels have in common that share the sum over k among the warps of a block, and among the blocks of a cluster:
 * the last steps, in an order that never changes, so that a result never does. */
#ifndef KOPS_CUDA_OPS_GEMM_SPLIT_CUH
#define KOPS_CUDA_OPS_GEMM_SPLIT_CUH

#include "cluster.cuh"
#include "gemm_loop.cuh"

enum { SPLIT_WARPS = GEMM_THREADS / 32 };

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

/* `part[w]` are the sums of warp w, SPLIT_WARPS times ROWS × COLUMNS, written by all warps of all blocks, and a part of the
 * block's shared memory that it uses for nothing else before the next split_end(). Adds them up and writes the tile, each
 * block a share of it. */
template <typename T, int SPLIT, int ROWS, int COLUMNS>
__device__ __forceinline__ void split_write(const cuda_ops_gemm &p, const gemm_tile &tile, float *part, uint32_t rank)
{
    constexpr int SIZE = ROWS * COLUMNS, SHARE = SIZE / SPLIT;
    const float alpha = (float)p.alpha, beta = (float)p.beta;

    __syncthreads();
    for (int i = threadIdx.x; i < SIZE; i += GEMM_THREADS) {
        float sum = part[i];
#pragma unroll
        for (int w = 1; w < SPLIT_WARPS; w++)
            sum += part[w * SIZE + i];
        part[i] = sum;
    }
    split_barrier<SPLIT>();
    for (int j = threadIdx.x; j < SHARE; j += GEMM_THREADS) {
        const int i = rank * SHARE + j;
        const uint64_t row = tile.row + i / COLUMNS, column = tile.column + i % COLUMNS;
        float sum = 0;

        if (row >= p.m || column >= p.n)
            continue;
        if constexpr (SPLIT > 1) {
#pragma unroll
            for (int s = 0; s < SPLIT; s++)
                sum += cluster_load(&part[i], s);
        } else {
            sum = part[i];
        }
        T *to = reinterpret_cast<T *>(p.out.address) + tile.out + row * p.out.row + column * p.out.column;
        sum *= alpha;
        *to = element<T>::narrow(beta != 0 ? sum + beta * widen(*to) : sum);
    }
}

#endif

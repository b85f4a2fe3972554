/* The common end of gemm kernels that split the sum over k among the warps of a block and the blocks of a cluster.
 * Parts are added in a fixed order, so that results are reproducible. */
#ifndef KOPS_CUDA_OPS_GEMM_SPLIT_CUH
#define KOPS_CUDA_OPS_GEMM_SPLIT_CUH

#include "cluster.cuh"
#include "gemm_loop.cuh"

enum { SPLIT_PARTS = 8 /* partial sums of a tile that a block adds up */ };

/* Finds tile number `work`, row by row. There are fewer than 2^32 tiles: 64-bit divisions would take longer than all
 * else. LINEAR: with a bias and an activation, in place of beta. */
template <int ROWS, int COLUMNS, bool LINEAR>
__device__ __forceinline__ gemm_tile split_locate(const cuda_ops_gemm &p, uint32_t work)
{
    const uint32_t tiles_n = (uint32_t)p.tiles_n, tiles = (uint32_t)p.tiles_m * tiles_n;
    gemm_tile t = {};

    if (p.batch_rank) {
        uint32_t batch = work / tiles;
        work -= batch * tiles;
        for (uint32_t d = 0; d < p.batch_rank; d++) {
            const uint32_t shape = (uint32_t)p.batch_shape[d], i = batch % shape;
            batch /= shape;
            t.a += i * p.a.batch[d];
            t.b += i * p.b.batch[d];
            t.out += i * p.out.batch[d];
            if (LINEAR)
                t.bias += i * p.bias.batch[d];
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

/* Receives partial sums from the other blocks of a cluster: each block adds up a share of the tile's SIZE elements. */
template <int SPLIT, int SIZE> struct split_exchange {
    static constexpr int SHARE = SIZE / SPLIT;
    static_assert(SHARE * SPLIT == SIZE, "equal shares");
    float from[SPLIT > 1 ? SPLIT : 1][SPLIT > 1 ? SHARE : 1];
    uint64_t barrier;

    __device__ __forceinline__ void expect()
    {
        if (threadIdx.x == 0)
            barrier_expect(shared_address(&barrier), (SPLIT - 1) * SHARE * sizeof(float));
    }

    /* Call begin() at the beginning of the kernel, and ready() before the first send. */
    __device__ __forceinline__ void begin()
    {
        if constexpr (SPLIT > 1) {
            if (threadIdx.x == 0) {
                barrier_init(shared_address(&barrier), 1);
                barrier_init_done();
            }
            expect();
            __syncthreads();
            cluster_arrive();
        }
    }

    __device__ __forceinline__ void ready()
    {
        if constexpr (SPLIT > 1)
            cluster_wait();
    }

    /* Call before the next tile. Waits until all blocks have read what they received. */
    __device__ __forceinline__ void again()
    {
        __syncthreads();
        if constexpr (SPLIT > 1) {
            expect();
            cluster_arrive();
            cluster_wait();
        }
    }
};

template <typename T, bool LINEAR>
__device__ __forceinline__ void split_store(const cuda_ops_gemm &p, const gemm_tile &tile, int row, int column,
                                            float sum)
{
    if (tile.row + row >= p.m || tile.column + column >= p.n)
        return;
    T *to = reinterpret_cast<T *>(p.out.address) + tile.out + (tile.row + row) * p.out.row +
            (tile.column + column) * p.out.column;
    if constexpr (LINEAR) {
        const T *bias = reinterpret_cast<const T *>(p.bias.address) + tile.bias;
        const float y = widen(bias[(tile.row + row) * p.bias.row + (tile.column + column) * p.bias.column]);
        *to = element<T>::narrow(gemm_activate((float)p.alpha * sum + y, p.activation));
        return;
    }
    const float beta = (float)p.beta;
    sum *= (float)p.alpha;
    *to = element<T>::narrow(beta != 0 ? sum + beta * widen(*to) : sum);
}

/* Sends the sums at (row, column) and (row, column + 1), column even, to the block that adds them up. With SPLIT 1
 * writes them to out. */
template <typename T, int SPLIT, int ROWS, int COLUMNS, bool LINEAR>
__device__ __forceinline__ void split_give(const cuda_ops_gemm &p, const gemm_tile &tile, int row, int column,
                                           float low, float high, split_exchange<SPLIT, ROWS * COLUMNS> &exchange)
{
    if constexpr (SPLIT == 1) {
        split_store<T, LINEAR>(p, tile, row, column, low);
        split_store<T, LINEAR>(p, tile, row, column + 1, high);
    } else {
        const int i = row * COLUMNS + column, owner = i / exchange.SHARE;
        const uint32_t rank = split_rank<SPLIT>();
        float *place = &exchange.from[rank][i % exchange.SHARE];

        if (owner == (int)rank) {
            place[0] = low;
            place[1] = high;
        } else {
            cluster_send(place, owner, low, high, shared_address(&exchange.barrier));
        }
    }
}

/* Adds up the sums that all blocks sent to this one, and writes them to out. `turn` counts the tiles. */
template <typename T, int SPLIT, int ROWS, int COLUMNS, int THREADS, bool LINEAR>
__device__ __forceinline__ void split_take(const cuda_ops_gemm &p, const gemm_tile &tile,
                                           split_exchange<SPLIT, ROWS * COLUMNS> &exchange, uint32_t turn)
{
    if constexpr (SPLIT > 1) {
        __syncthreads();
        barrier_wait(shared_address(&exchange.barrier), turn & 1);
        for (int j = threadIdx.x; j < exchange.SHARE; j += THREADS) {
            const int i = split_rank<SPLIT>() * exchange.SHARE + j;
            float sum = exchange.from[0][j];
#pragma unroll
            for (int s = 1; s < SPLIT; s++)
                sum += exchange.from[s][j];
            split_store<T, LINEAR>(p, tile, i / COLUMNS, i % COLUMNS, sum);
        }
    }
}

/* Adds up SPLIT_PARTS partial sums of a tile and writes the tile, each block a share of it. `part`: the partial sums in
 * shared memory, in rows `pitch` elements apart, written by all warps. `turn` counts the tiles. */
template <typename T, int SPLIT, int ROWS, int COLUMNS, int THREADS, bool LINEAR>
__device__ __forceinline__ void split_write(const cuda_ops_gemm &p, const gemm_tile &tile, const float *part, int pitch,
                                            split_exchange<SPLIT, ROWS * COLUMNS> &exchange, uint32_t turn)
{
    constexpr int SIZE = ROWS * COLUMNS, SHARE = exchange.SHARE;
    const uint32_t rank = split_rank<SPLIT>();

    __syncthreads();
    if (turn == 0)
        exchange.ready();
    for (int i = threadIdx.x; i < SIZE; i += THREADS) {
        const float *first = part + i / COLUMNS * pitch + i % COLUMNS;
        float sum = *first;
#pragma unroll
        for (int w = 1; w < SPLIT_PARTS; w++)
            sum += first[w * ROWS * pitch];
        if constexpr (SPLIT == 1) {
            split_store<T, LINEAR>(p, tile, i / COLUMNS, i % COLUMNS, sum);
        } else {
            const uint32_t owner = i / SHARE;
            float *place = &exchange.from[rank][i % SHARE];
            if (owner == rank)
                *place = sum;
            else
                cluster_send(place, owner, sum, shared_address(&exchange.barrier));
        }
    }
    split_take<T, SPLIT, ROWS, COLUMNS, THREADS, LINEAR>(p, tile, exchange, turn);
}

#endif

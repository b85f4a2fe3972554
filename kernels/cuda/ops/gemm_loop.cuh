/* The common part of the tiled gemm kernels: the loop over the tiles of out, and the loop over k with two panels of
 * each operand in shared memory, of which one is filled while the other is used.
 *
 * A Method defines the rest: its tile (ROWS × COLUMNS), the DEPTH of a panel and its form in shared memory (put()), the
 * sums of a thread, multiply(), write(), and for GENERAL kernels finish() and write_general(). */
#ifndef KOPS_CUDA_OPS_GEMM_LOOP_CUH
#define KOPS_CUDA_OPS_GEMM_LOOP_CUH

#include "gemm_epilogue.cuh"
#include "gemm_panel.cuh"
#include "stamp.cuh"

constexpr uint64_t GEMM_TILE_GROUP = 8;

/* A tile of out: its position, and where its panels and its batch of out begin. These are offsets in elements: the
 * compiler would use generic addressing for pointers that were in shared memory. */
struct gemm_tile {
    uint64_t row, column; /* the tile's first element */
    uint64_t a, b, out, bias;
};

/* Finds tile number `work` of tiles_m · tiles_n · batch_count. Tiles that run together are GEMM_TILE_GROUP rows high,
 * so that they share panels in the L2 cache. */
template <int M, int N, bool GENERAL>
__device__ __forceinline__ gemm_tile gemm_locate(const cuda_ops_gemm &p, uint64_t work)
{
    const uint64_t tiles = p.tiles_m * p.tiles_n;
    uint64_t batch = work / tiles, offset_a = 0, offset_b = 0, offset_out = 0, offset_bias = 0;
    const uint64_t tile = work - batch * tiles;
    for (uint32_t d = 0; d < p.batch_rank; d++) {
        const uint64_t i = d + 1 == p.batch_rank ? batch : batch % p.batch_shape[d];
        batch /= p.batch_shape[d];
        offset_a += i * p.a.batch[d];
        offset_b += i * p.b.batch[d];
        offset_out += i * p.out.batch[d];
        if (GENERAL)
            offset_bias += i * p.bias.batch[d];
    }

    const uint64_t group = tile / (GEMM_TILE_GROUP * p.tiles_n), in_group = tile - group * GEMM_TILE_GROUP * p.tiles_n;
    const uint64_t first = group * GEMM_TILE_GROUP;
    const uint64_t height = p.tiles_m - first < GEMM_TILE_GROUP ? p.tiles_m - first : GEMM_TILE_GROUP;
    gemm_tile t;
    t.row = (first + in_group % height) * M;
    t.column = in_group / height * N;
    t.a = offset_a + t.row * p.a.row;
    t.b = offset_b + t.column * p.b.column;
    t.out = offset_out;
    t.bias = !GENERAL ? 0 : offset_bias + t.row * p.bias.row + t.column * p.bias.column;
    return t;
}

/* Returns min(total - done, limit). */
__device__ __forceinline__ int gemm_left(uint64_t total, uint64_t done, int limit)
{
    const uint64_t left = total - done;
    return left < (uint64_t)limit ? (int)left : limit;
}

/* GENERAL: with a bias, or an out of another type than a and b. Else `bias`, `activation` and `out_wide` are 0. */
template <typename Method, bool WIDE, bool GENERAL> __device__ __forceinline__ void gemm_run(const cuda_ops_gemm &p)
{
    using T = typename Method::dtype;
    constexpr int M = Method::ROWS, N = Method::COLUMNS, K = Method::DEPTH;
    __shared__ __align__(16) unsigned char memory_a[2][sizeof(typename Method::shared_a)];
    __shared__ __align__(16) unsigned char memory_b[2][sizeof(typename Method::shared_b)];
    __shared__ gemm_tile tile; /* shared, since the loop over k needs all registers */
    auto *shared_a = reinterpret_cast<typename Method::shared_a *>(memory_a);
    auto *shared_b = reinterpret_cast<typename Method::shared_b *>(memory_b);
    const uint64_t works = p.tiles_m * p.tiles_n * p.batch_count;

    for (uint64_t work = blockIdx.x; work < works; work += gridDim.x) {
        if (threadIdx.x == 0)
            tile = gemm_locate<M, N, GENERAL>(p, work);
        __syncthreads();
        const int rows = gemm_left(p.m, tile.row, M), columns = gemm_left(p.n, tile.column, N);
        typename Method::sums sum = {};
        gemm_panel<T, M, K, WIDE> a;
        gemm_panel<T, N, K, WIDE> b;
        uint64_t left = p.k;
        int now = 0;

        a.start(reinterpret_cast<const T *>(p.a.address) + tile.a, p.a.row, p.a.column, p.a_access);
        b.start(reinterpret_cast<const T *>(p.b.address) + tile.b, p.b.column, p.b.row, p.b_access);
        if (left) {
            a.fetch(rows, left < K ? (int)left : K);
            b.fetch(columns, left < K ? (int)left : K);
            shared_a[0].put(a);
            shared_b[0].put(b);
            __syncthreads();
        }
        while (left > K) {
            left -= K;
            a.fetch(rows, left < K ? (int)left : K);
            b.fetch(columns, left < K ? (int)left : K);
            Method::multiply(p, shared_a[now], shared_b[now], sum);
            now ^= 1;
            shared_a[now].put(a);
            shared_b[now].put(b);
            __syncthreads();
        }
        if (left)
            Method::multiply(p, shared_a[now], shared_b[now], sum);
        if (GENERAL && gemm_has_epilogue(p))
            Method::finish(p, tile, sum);
        if (GENERAL)
            Method::write_general(p, tile, sum);
        else
            Method::template write<T, false>(p, tile, sum);
        __syncthreads(); /* before the next tile overwrites `tile` and the panels */
    }
}

#define CUDA_OPS_GEMM_KERNEL(symbol, blocks, ...)                                                                      \
    extern "C" __global__ void __launch_bounds__(GEMM_THREADS, blocks) symbol(const __grid_constant__ cuda_ops_gemm p) \
    {                                                                                                                  \
        stamp_start(p.stamps);                                                                                         \
        gemm_run<__VA_ARGS__>(p);                                                                                      \
        stamp_end(p.stamps);                                                                                           \
    }

/* Defines kops_gemm_<name>, and the GENERAL kernel kops_linear_<name>. */
#define CUDA_OPS_GEMM(name, blocks, wide, ...)                                                                         \
    CUDA_OPS_GEMM_KERNEL(kops_gemm_##name, blocks, __VA_ARGS__, wide, false)                                           \
    CUDA_OPS_GEMM_KERNEL(kops_linear_##name, blocks, __VA_ARGS__, wide, true)

#endif

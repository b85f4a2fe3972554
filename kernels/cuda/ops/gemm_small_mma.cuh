/* Matrix product of small matrices in f32 as tf32, on tensor cores: tiles of 32 × 32 by four warps, 16 × 16 each.
 * Panels of 32 steps of k are copied to a ring in shared memory while others are multiplied. The blocks of a cluster
 * share the sum over k, taking panels in turn.
 *
 * A panel in shared memory keeps its order of global memory, [x][k] or [k][x]. */
#ifndef KOPS_CUDA_OPS_GEMM_SMALL_MMA_CUH
#define KOPS_CUDA_OPS_GEMM_SMALL_MMA_CUH

#include "async.cuh"
#include "gemm_split.cuh"
#include "warp.cuh"

enum { SMALL_MMA_TILE = 32, SMALL_MMA_DEPTH = 32, SMALL_MMA_RING = 4 /* panels of an operand in shared memory */ };

/* A thread's share of an operand's panels. WIDE: pieces of 16 bytes; else single elements with any strides. */
template <bool WIDE> struct small_mma_panel {
    static constexpr int X = SMALL_MMA_TILE, K = SMALL_MMA_DEPTH, WIDTH = WIDE ? 4 : 1;
    /* Rows are padded, so that a warp's reads use different banks. */
    static constexpr int ROW_ALONG = K + 4, ROW_ACROSS = X + 8, SIZE = K * ROW_ACROSS;
    static constexpr int IN_ROW = K / WIDTH, STEP = CUDA_OPS_SMALL_MMA_THREADS / IN_ROW, PIECES = X / STEP;
    static_assert(X == K && X * ROW_ALONG <= SIZE && STEP * PIECES == X, "both ways have the same shares");

    const float *base;     /* the operand's first element, an aligned address for copies of 0 bytes */
    const float *next;     /* the thread's first element of the next panel */
    uint64_t piece, panel; /* elements from piece to piece, from panel to panel */
    int x_left;
    bool along;

    static __device__ __forceinline__ int inner()
    {
        return threadIdx.x % IN_ROW * WIDTH;
    }

    static __device__ __forceinline__ int outer()
    {
        return threadIdx.x / IN_ROW;
    }

    /* `step`: steps of k from one panel to the next. */
    __device__ __forceinline__ void start(const float *first, uint64_t stride_x, uint64_t stride_k, uint32_t access,
                                          int left, int step)
    {
        const uint64_t stride_inner = access == CUDA_OPS_ACCESS_ALONG_K ? stride_k : stride_x;
        const uint64_t stride_outer = access == CUDA_OPS_ACCESS_ALONG_K ? stride_x : stride_k;

        along = access == CUDA_OPS_ACCESS_ALONG_K;
        base = first;
        next = first + inner() * stride_inner + outer() * stride_outer;
        piece = STEP * stride_outer;
        panel = step * stride_k;
        x_left = left;
    }

    /* Starts the copy of the next panel, of which x_left rows and k_left steps exist. */
    __device__ __forceinline__ void fetch(float *to, int k_left)
    {
        const int left = (along ? k_left : x_left) - inner(), rows = (along ? x_left : k_left) - outer();
        const int here = (left < 0 ? 0 : left < WIDTH ? left : WIDTH) * (int)sizeof(float);
        const int row = along ? ROW_ALONG : ROW_ACROSS;

        to += outer() * row + inner();
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const bool there = i * STEP < rows && here > 0;
            copy_async<WIDTH * sizeof(float)>(to + i * STEP * row, there ? next + i * piece : base, there ? here : 0);
        }
        next += panel;
    }
};

template <bool A_ALONG, bool B_ALONG, bool WIDE> struct small_mma_fragments {
    using panel = small_mma_panel<WIDE>;
    uint32_t a[4], b[2][2];

    template <bool ALONG> static __device__ __forceinline__ uint32_t get(const float *at, int x, int k)
    {
        return to_tf32(ALONG ? at[x * panel::ROW_ALONG + k] : at[k * panel::ROW_ACROSS + x]);
    }

    /* Loads the warp's fragments of eight steps of k. */
    __device__ __forceinline__ void load(const float (&of)[2][panel::SIZE], int k)
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int row = warp / 2 * 16 + lane / 4, column = warp % 2 * 16 + lane / 4;

        k += lane % 4;
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = get<A_ALONG>(of[0], row + i % 2 * 8, k + i / 2 * 4);
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                b[j][i] = get<B_ALONG>(of[1], column + j * 8, k + i * 4);
        }
    }
};

/* Multiplies `panels` panels. fetch(to) starts the copy of the next panel, if there is one, and ends a group; the first
 * SMALL_MMA_RING copies have been started. While eight steps are multiplied, the next eight are loaded to registers. */
template <bool A_ALONG, bool B_ALONG, bool WIDE, typename Fetch>
__device__ __forceinline__ void small_mma_multiply(float (&ring)[SMALL_MMA_RING][2][small_mma_panel<WIDE>::SIZE],
                                                   uint32_t panels, float (&sum)[2][4], Fetch fetch)
{
    constexpr int STEPS = SMALL_MMA_DEPTH / 8;
    small_mma_fragments<A_ALONG, B_ALONG, WIDE> f[2];

    copy_wait<SMALL_MMA_RING - 1>();
    __syncthreads();
    f[0].load(ring[0], 0);
    for (uint32_t panel = 0; panel < panels; panel++) {
        auto &now = ring[panel % SMALL_MMA_RING], &next = ring[(panel + 1) % SMALL_MMA_RING];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (s + 1 < STEPS) {
                f[(s + 1) % 2].load(now, (s + 1) * 8);
            } else if (panel + 1 < panels) {
                copy_wait<SMALL_MMA_RING - 2>();
                __syncthreads(); /* all warps have read `now` */
                f[(s + 1) % 2].load(next, 0);
                fetch(now);
            }
#pragma unroll
            for (int j = 0; j < 2; j++)
                multiply_add_tf32(sum[j], f[s % 2].a, f[s % 2].b[j]);
        }
    }
}

template <bool WIDE, int SPLIT> __device__ __forceinline__ void small_mma_run(const cuda_ops_gemm &p)
{
    constexpr int TILE = SMALL_MMA_TILE, DEPTH = SMALL_MMA_DEPTH;
    __shared__ __align__(16) float ring[SMALL_MMA_RING][2][small_mma_panel<WIDE>::SIZE];
    __shared__ split_exchange<SPLIT, TILE * TILE> exchange;
    const uint32_t works = (uint32_t)(p.tiles_m * p.tiles_n * p.batch_count), rank = split_rank<SPLIT>();
    const uint32_t all_panels = (uint32_t)((p.k + DEPTH - 1) / DEPTH);
    const uint32_t panels = all_panels > rank ? (all_panels - rank - 1) / SPLIT + 1 : 0;
    const bool a_along = p.a_access == CUDA_OPS_ACCESS_ALONG_K, b_along = p.b_access == CUDA_OPS_ACCESS_ALONG_K;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp / 2 * 16 + lane / 4, column = warp % 2 * 16 + lane % 4 * 2;
    uint32_t turn = 0;

    exchange.begin();
    for (uint32_t work = blockIdx.x / SPLIT; work < works; work += gridDim.x / SPLIT, turn++) {
        const gemm_tile tile = split_locate<TILE, TILE, false>(p, work);
        small_mma_panel<WIDE> a, b;
        float sum[2][4] = {};
        uint64_t k = rank * DEPTH;
        auto fetch = [&](float(&to)[2][small_mma_panel<WIDE>::SIZE]) {
            if (k < p.k) {
                a.fetch(to[0], gemm_left(p.k, k, DEPTH));
                b.fetch(to[1], gemm_left(p.k, k, DEPTH));
            }
            k += SPLIT * DEPTH;
            copy_commit();
        };

        a.start(reinterpret_cast<const float *>(p.a.address) + tile.a + k * p.a.column, p.a.row, p.a.column, p.a_access,
                gemm_left(p.m, tile.row, TILE), SPLIT * DEPTH);
        b.start(reinterpret_cast<const float *>(p.b.address) + tile.b + k * p.b.row, p.b.column, p.b.row, p.b_access,
                gemm_left(p.n, tile.column, TILE), SPLIT * DEPTH);
#pragma unroll
        for (int i = 0; i < SMALL_MMA_RING; i++)
            fetch(ring[i]);
        if (a_along && b_along)
            small_mma_multiply<true, true, WIDE>(ring, panels, sum, fetch);
        else if (a_along)
            small_mma_multiply<true, false, WIDE>(ring, panels, sum, fetch);
        else if (b_along)
            small_mma_multiply<false, true, WIDE>(ring, panels, sum, fetch);
        else
            small_mma_multiply<false, false, WIDE>(ring, panels, sum, fetch);
        if (turn == 0)
            exchange.ready();
#pragma unroll
        for (int i = 0; i < 4; i++)
            split_give<float, SPLIT, TILE, TILE, false>(p, tile, row + i % 2 * 8, column + i / 2 * 8,
                                                        sum[i / 2][i % 2 * 2], sum[i / 2][i % 2 * 2 + 1], exchange);
        split_take<float, SPLIT, TILE, TILE, CUDA_OPS_SMALL_MMA_THREADS, false>(p, tile, exchange, turn);
        if (work + gridDim.x / SPLIT < works)
            exchange.again(); /* before the next tile's panels overwrite this one's */
    }
}

#define CUDA_OPS_GEMM_SMALL_MMA_BODY(name, ...)                                                                        \
    kops_gemm_##name(const __grid_constant__ cuda_ops_gemm p)                                                          \
    {                                                                                                                  \
        stamp_start(p.stamps);                                                                                         \
        small_mma_run<__VA_ARGS__>(p);                                                                                 \
        stamp_end(p.stamps);                                                                                           \
    }

/* Defines kops_gemm_<name>_<split>, for operands that can be read in 16-byte pieces, and …_any, for all operands. */
#define CUDA_OPS_GEMM_SMALL_MMA(name)                                                                                  \
    extern "C" __global__ void __launch_bounds__(CUDA_OPS_SMALL_MMA_THREADS)                                           \
        CUDA_OPS_GEMM_SMALL_MMA_BODY(name##_1, true, 1) extern "C" __global__ void                                     \
        __launch_bounds__(CUDA_OPS_SMALL_MMA_THREADS) CUDA_OPS_GEMM_SMALL_MMA_BODY(name##_1_any, false, 1)
#define CUDA_OPS_GEMM_SMALL_MMA_SPLIT(name, split)                                                                     \
    extern "C" __global__ void __cluster_dims__(split, 1, 1) __launch_bounds__(CUDA_OPS_SMALL_MMA_THREADS)             \
        CUDA_OPS_GEMM_SMALL_MMA_BODY(name##_##split, true, split) extern "C" __global__ void                           \
        __cluster_dims__(split, 1, 1) __launch_bounds__(CUDA_OPS_SMALL_MMA_THREADS)                                    \
            CUDA_OPS_GEMM_SMALL_MMA_BODY(name##_##split##_any, false, split)

#endif

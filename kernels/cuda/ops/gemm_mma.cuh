/* Matrix product of 16-bit elements on tensor cores with sums in f32. A block has 8 warps and an M × N tile of out;
 * each warp computes WARP_M × WARP_N of it from 16 × 8 products over 16 steps of k (mma.sync). A panel in shared memory
 * keeps its order of global memory, [x][k] or [k][x]; ldmatrix loads either to the same registers. */
#ifndef KOPS_CUDA_OPS_GEMM_MMA_CUH
#define KOPS_CUDA_OPS_GEMM_MMA_CUH

#include "gemm_loop.cuh"
#include "warp.cuh"

/* A panel in shared memory. Rows are padded by 16 bytes, so that the eight rows that ldmatrix reads at once lie in
 * different banks. */
template <typename T, int X, int K> struct gemm_mma_shared {
    static constexpr int ROW_ALONG = K + 8, ROW_ACROSS = X + 8;
    static constexpr int SIZE = X * ROW_ALONG > K *ROW_ACROSS ? X *ROW_ALONG : K *ROW_ACROSS;
    T at[SIZE];

    template <bool WIDE> __device__ __forceinline__ void put(const gemm_panel<T, X, K, WIDE> &panel)
    {
        if (panel.along)
            put_pieces<typename gemm_panel<T, X, K, WIDE>::share_along, true>(panel);
        else
            put_pieces<typename gemm_panel<T, X, K, WIDE>::share_across, false>(panel);
    }

    template <typename Share, bool ALONG> static __device__ __forceinline__ int place(int i)
    {
        const int x = Share::x() + i * Share::STEP_X, k = Share::k() + i * Share::STEP_K;
        return ALONG ? x * ROW_ALONG + k : k * ROW_ACROSS + x;
    }

    template <typename Share, bool ALONG, bool WIDE>
    __device__ __forceinline__ void put_pieces(const gemm_panel<T, X, K, WIDE> &panel)
    {
#pragma unroll
        for (int i = 0; i < Share::PIECES; i++) {
            if (WIDE)
                *reinterpret_cast<uint4 *>(&at[place<Share, ALONG>(i)]) = panel.packs[i % panel.PACKS].bits;
            else
                at[place<Share, ALONG>(i)] = panel.e[i];
        }
    }

    /* Loads the fragment at (x, k); `along`: the panel is [x][k]. */
    __device__ __forceinline__ gemm_fragment get(int x, int k, bool along) const
    {
        const int lane = threadIdx.x % 32, row = lane % 8, block_x = lane / 8 % 2 * 8, block_k = lane / 16 * 8;
        if (along)
            return load_fragment<false>(&at[(x + block_x + row) * ROW_ALONG + k + block_k]);
        return load_fragment<true>(&at[(k + block_k + row) * ROW_ACROSS + x + block_x]);
    }
};

template <typename T, int M, int N, int K, int WARP_M, int WARP_N> struct gemm_mma {
    using dtype = T;
    using shared_a = gemm_mma_shared<T, M, K>;
    using shared_b = gemm_mma_shared<T, N, K>;
    static constexpr int ROWS = M, COLUMNS = N, DEPTH = K;
    static constexpr int WARPS_N = N / WARP_N, STEPS_M = WARP_M / 16, STEPS_N = WARP_N / 8;
    static_assert(M / WARP_M * WARPS_N * 32 == GEMM_THREADS && WARP_N % 16 == 0 && K % 16 == 0, "whole fragments");

    struct sums {
        float at[STEPS_M][STEPS_N][4];
    };

    static __device__ __forceinline__ int warp_row()
    {
        return threadIdx.x / 32 / WARPS_N * WARP_M;
    }

    static __device__ __forceinline__ int warp_column()
    {
        return threadIdx.x / 32 % WARPS_N * WARP_N;
    }

    static __device__ __forceinline__ void multiply(const cuda_ops_gemm &p, const shared_a &a, const shared_b &b,
                                                    sums &sum)
    {
        const bool a_along = p.a_access == CUDA_OPS_ACCESS_ALONG_K;
        const bool b_along = p.b_access == CUDA_OPS_ACCESS_ALONG_K;
#pragma unroll
        for (int k = 0; k < K; k += 16) {
            gemm_fragment x[STEPS_M], y[STEPS_N / 2];
#pragma unroll
            for (int i = 0; i < STEPS_M; i++)
                x[i] = a.get(warp_row() + i * 16, k, a_along);
#pragma unroll
            for (int j = 0; j < STEPS_N / 2; j++)
                y[j] = b.get(warp_column() + j * 16, k, b_along);
#pragma unroll
            for (int i = 0; i < STEPS_M; i++) {
#pragma unroll
                for (int j = 0; j < STEPS_N; j++)
                    multiply_add(sum.at[i][j], x[i], y[j / 2].block[j % 2], y[j / 2].block[j % 2 + 2], T());
            }
        }
    }

    /* Applies bias and activation to the sums in place. Positions of sums are as in write(). */
    static __device__ __forceinline__ void finish(const cuda_ops_gemm &p, const gemm_tile &tile, sums &sum)
    {
        const int lane = threadIdx.x % 32, row = warp_row() + lane / 4, column = warp_column() + lane % 4 * 2;
        const int rows = gemm_left(p.m, tile.row, M), columns = gemm_left(p.n, tile.column, N);

        gemm_epilogue<T, float, STEPS_M * 2, STEPS_N * 2>(
            p, tile.bias, rows, columns, [=](int i) { return row + i * 8; },
            [=](int j) { return column + j / 2 * 8 + j % 2; },
            [&](int i, int j) -> float & { return sum.at[i / 2][j / 2][i % 2 * 2 + j % 2]; });
    }

    static __device__ __forceinline__ void write_general(const cuda_ops_gemm &p, const gemm_tile &tile, const sums &sum)
    {
        if (p.out_wide)
            write<float, true>(p, tile, sum);
        else
            write<T, true>(p, tile, sum);
    }

    /* O: out's type. A thread holds rows r and r + 8, columns c and c + 1 of every 16 × 8 product. */
    template <typename O, bool GENERAL>
    static __device__ __forceinline__ void write(const cuda_ops_gemm &p, const gemm_tile &tile, const sums &sum)
    {
        const int lane = threadIdx.x % 32, row = warp_row() + lane / 4, column = warp_column() + lane % 4 * 2;
        const int rows = gemm_left(p.m, tile.row, M), columns = gemm_left(p.n, tile.column, N);
        const float alpha = GENERAL && gemm_has_epilogue(p) ? 1 : (float)p.alpha;
#pragma unroll
        for (int i = 0; i < STEPS_M * 2; i++) {
            const int r = row + i * 8;
            O *to = reinterpret_cast<O *>(p.out.address) + tile.out + (tile.row + r) * p.out.row +
                    tile.column * p.out.column;
#pragma unroll
            for (int j = 0; j < STEPS_N; j++) {
                if (r < rows)
                    write_pair(p, to, column + j * 8, columns, alpha * sum.at[i / 2][j][i % 2 * 2],
                               alpha * sum.at[i / 2][j][i % 2 * 2 + 1]);
            }
        }
    }

    template <typename O>
    static __device__ __forceinline__ void write_pair(const cuda_ops_gemm &p, O *row, int column, int columns,
                                                      float low, float high)
    {
        const float beta = (float)p.beta;
        O *place = row + column * p.out.column;

        if (p.out_vector && column + 1 < columns) {
            pair<O> y;
            if (beta != 0) {
                y = pair<O>::load(place);
                low += beta * widen(y.e[0]);
                high += beta * widen(y.e[1]);
            }
            y.e[0] = element<O>::narrow(low);
            y.e[1] = element<O>::narrow(high);
            y.store(place);
            return;
        }
        if (column < columns)
            *place = element<O>::narrow(beta != 0 ? low + beta * widen(*place) : low);
        if (column + 1 < columns)
            place[p.out.column] = element<O>::narrow(beta != 0 ? high + beta * widen(place[p.out.column]) : high);
    }
};

#define CUDA_OPS_GEMM_MMA(name, blocks, ...)                                                                           \
    CUDA_OPS_GEMM(name, blocks, true, gemm_mma<__VA_ARGS__>)                                                           \
    CUDA_OPS_GEMM(name##_any, 1, false, gemm_mma<__VA_ARGS__>)

#endif

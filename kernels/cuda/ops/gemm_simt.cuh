/* Matrix product without tensor cores: M × N tiles of out, two panels of depth K of each operand in shared memory, of
 * which one is filled while the other is used, TM × TN elements of out in each thread's registers.
 *
 * A warp covers 4·TM × 8·TN elements. Groups of 16 bytes of neighbouring threads interleave, so that reads of shared
 * memory are broadcasts or free of bank conflicts. */
#ifndef KOPS_CUDA_OPS_GEMM_SIMT_CUH
#define KOPS_CUDA_OPS_GEMM_SIMT_CUH

#include "gemm_loop.cuh"

/* A panel in shared memory: [k][x], padded so that transposing stores use different banks and rows stay aligned. */
template <typename W, int X, int K> struct gemm_simt_shared {
    static constexpr int PAD = 16 / sizeof(W);
    W at[K][X + PAD];

    template <typename T, bool WIDE> __device__ __forceinline__ void put(const gemm_panel<T, X, K, WIDE> &panel)
    {
        using from = gemm_panel<T, X, K, WIDE>;
        if (panel.along)
            put_elements<typename from::share_along, 1, 0>(panel);
        else if (WIDE)
            put_rows<typename from::share_across>(panel);
        else
            put_elements<typename from::share_across, 0, 1>(panel);
    }

    template <typename Share, typename Panel> __device__ __forceinline__ void put_rows(const Panel &panel)
    {
#pragma unroll
        for (int i = 0; i < Share::PIECES; i++) {
#pragma unroll
            for (int v = 0; v < Panel::WIDTH; v += PAD) {
                pack<W> q;
#pragma unroll
                for (int j = 0; j < PAD; j++)
                    q.e[j] = widen(panel.e[(i * Panel::WIDTH + v + j) % Panel::ELEMENTS]);
                *reinterpret_cast<uint4 *>(&at[Share::k() + i * Share::STEP_K][Share::x() + v]) = q.bits;
            }
        }
    }

    template <typename Share, int STEP_K, int STEP_X, typename Panel>
    __device__ __forceinline__ void put_elements(const Panel &panel)
    {
#pragma unroll
        for (int i = 0; i < Share::PIECES; i++) {
#pragma unroll
            for (int v = 0; v < Panel::WIDTH; v++)
                at[Share::k() + i * Share::STEP_K + v * STEP_K][Share::x() + i * Share::STEP_X + v * STEP_X] =
                    widen(panel.e[i * Panel::WIDTH + v]);
        }
    }
};

template <typename T, int M, int N, int K, int TM, int TN> struct gemm_simt {
    using W = typename element<T>::wide;
    using dtype = T;
    using shared_a = gemm_simt_shared<W, M, K>;
    using shared_b = gemm_simt_shared<W, N, K>;
    static constexpr int ROWS = M, COLUMNS = N, DEPTH = K;
    static constexpr int G = 16 / sizeof(W); /* elements in a group */
    static constexpr int WARP_M = 4 * TM, WARP_N = 8 * TN, WARPS_N = N / WARP_N;
    static_assert(M / WARP_M * WARPS_N * 32 == GEMM_THREADS, "one warp for each part of the tile");

    struct sums {
        W at[TM][TN];
    };

    /* Row and column in the tile of the thread's first group; group g is 4·G rows (8·G columns) further. */
    static __device__ __forceinline__ int first_row()
    {
        return threadIdx.x / 32 / WARPS_N * WARP_M + threadIdx.x % 32 / 8 * G;
    }

    static __device__ __forceinline__ int first_column()
    {
        return threadIdx.x / 32 % WARPS_N * WARP_N + threadIdx.x % 8 * G;
    }

    static __device__ __forceinline__ void multiply(const cuda_ops_gemm &, const shared_a &a, const shared_b &b,
                                                    sums &sum)
    {
        const int row = first_row(), column = first_column();
#pragma unroll
        for (int k = 0; k < K; k++) {
            pack<W> x[TM / G], y[TN / G];
#pragma unroll
            for (int g = 0; g < TM / G; g++)
                x[g].bits = *reinterpret_cast<const uint4 *>(&a.at[k][row + g * 4 * G]);
#pragma unroll
            for (int g = 0; g < TN / G; g++)
                y[g].bits = *reinterpret_cast<const uint4 *>(&b.at[k][column + g * 8 * G]);
#pragma unroll
            for (int i = 0; i < TM; i++) {
#pragma unroll
                for (int j = 0; j < TN; j++)
                    sum.at[i][j] += x[i / G].e[i % G] * y[j / G].e[j % G];
            }
        }
    }

    /* Applies bias and activation to the sums in place. Positions of sums are as in write(). */
    static __device__ __forceinline__ void finish(const cuda_ops_gemm &p, const gemm_tile &tile, sums &sum)
    {
        const int row = first_row(), column = first_column();
        const int rows = gemm_left(p.m, tile.row, M), columns = gemm_left(p.n, tile.column, N);

        gemm_epilogue<T, W, TM, TN>(
            p, tile.bias, rows, columns, [=](int i) { return row + i / G * 4 * G + i % G; },
            [=](int j) { return column + j / G * 8 * G + j % G; }, [&](int i, int j) -> W & { return sum.at[i][j]; });
    }

    static __device__ __forceinline__ void write_general(const cuda_ops_gemm &p, const gemm_tile &tile, const sums &sum)
    {
        if (sizeof(T) != sizeof(W) && p.out_wide)
            write<W, true>(p, tile, sum);
        else
            write<T, true>(p, tile, sum);
    }

    /* O: out's type. */
    template <typename O, bool GENERAL>
    static __device__ __forceinline__ void write(const cuda_ops_gemm &p, const gemm_tile &tile, const sums &sum)
    {
        const int row = first_row(), column = first_column();
        const W alpha = GENERAL && gemm_has_epilogue(p) ? 1 : (W)p.alpha, beta = (W)p.beta;
        const int rows = gemm_left(p.m, tile.row, M), columns = gemm_left(p.n, tile.column, N);
#pragma unroll
        for (int i = 0; i < TM; i++) {
            const int r = row + i / G * 4 * G + i % G;
            if (r >= rows)
                continue;
            O *to = reinterpret_cast<O *>(p.out.address) + tile.out + (tile.row + r) * p.out.row +
                    tile.column * p.out.column;
#pragma unroll
            for (int g = 0; g < TN / G; g++) {
                const int c = column + g * 8 * G;
                if (sizeof(O) == sizeof(W) && p.out_vector && c + G <= columns) {
                    uint4 *place = reinterpret_cast<uint4 *>(to + c);
                    pack<W> y;
                    if (beta != 0)
                        y.bits = *place;
#pragma unroll
                    for (int j = 0; j < G; j++)
                        y.e[j] =
                            beta != 0 ? alpha * sum.at[i][g * G + j] + beta * y.e[j] : alpha * sum.at[i][g * G + j];
                    *place = y.bits;
                    continue;
                }
#pragma unroll
                for (int j = 0; j < G; j++) {
                    if (c + j < columns) {
                        O *place = to + (c + j) * p.out.column;
                        const W product = alpha * sum.at[i][g * G + j];
                        *place = element<O>::narrow(beta != 0 ? product + beta * widen(*place) : product);
                    }
                }
            }
        }
    }
};

/* Defines kops_gemm_<name>, for operands that can be read in 16-byte pieces, and kops_gemm_<name>_any, for any. */
#define CUDA_OPS_GEMM_SIMT(name, blocks, ...)                                                                          \
    CUDA_OPS_GEMM(name, blocks, true, gemm_simt<__VA_ARGS__>)                                                          \
    CUDA_OPS_GEMM(name##_any, blocks, false, gemm_simt<__VA_ARGS__>)

#endif

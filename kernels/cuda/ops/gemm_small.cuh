/* Matrix product of small matrices in f32, with low latency. Tiles are 32 × 32, so that there are many. Up to
 * SMALL_DEPTH steps of k are loaded at once. The warps of a block share the steps of k, and the blocks of a cluster
 * longer sums. */
#ifndef KOPS_CUDA_OPS_GEMM_SMALL_CUH
#define KOPS_CUDA_OPS_GEMM_SMALL_CUH

#include "gemm_split.cuh"

enum { SMALL_TILE = 32, SMALL_DEPTH = 128, SMALL_SLICE = SMALL_DEPTH / SPLIT_PARTS /* a warp's steps of k */ };

/* A panel, [x][k] or [k][x] as in global memory. Rows are padded, so that threads read different banks. */
struct small_panel {
    static constexpr int ROW_ALONG = SMALL_DEPTH + 4, ROW_ACROSS = SMALL_TILE + 4;
    static constexpr int SIZE = SMALL_DEPTH * ROW_ACROSS;
    static_assert(SMALL_TILE * ROW_ALONG <= SIZE, "room for both");

    template <bool WIDE> using loaded = gemm_panel<float, SMALL_TILE, SMALL_DEPTH, WIDE>;

    template <bool WIDE> static __device__ __forceinline__ void put(float *at, const loaded<WIDE> &panel)
    {
        if (panel.along)
            put_pieces<typename loaded<WIDE>::share_along, true>(at, panel);
        else
            put_pieces<typename loaded<WIDE>::share_across, false>(at, panel);
    }

    template <typename Share, bool ALONG, bool WIDE>
    static __device__ __forceinline__ void put_pieces(float *at, const loaded<WIDE> &panel)
    {
#pragma unroll
        for (int i = 0; i < Share::PIECES; i++) {
            const int x = Share::x() + i * Share::STEP_X, k = Share::k() + i * Share::STEP_K;
            float *to = at + (ALONG ? x * ROW_ALONG + k : k * ROW_ACROSS + x);
            if (WIDE)
                *reinterpret_cast<uint4 *>(to) = panel.packs[i % panel.PACKS].bits;
            else
                *to = panel.e[i];
        }
    }

    /* Returns the row (of b: column) of the panel that is number i of a lane; reads are free of bank conflicts. */
    template <int LANES> static __device__ __forceinline__ int place(int i, int lane, bool along)
    {
        return along ? i * LANES + lane : i / 4 * 4 * LANES + lane * 4 + i % 4;
    }

    /* Reads four steps of k, from `k` on, of a lane's COUNT rows. */
    template <int COUNT, int LANES>
    static __device__ __forceinline__ void get(float (&to)[COUNT][4], const float *at, int k, int lane, bool along)
    {
        if (along) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                pack<float> piece;
                piece.bits = *reinterpret_cast<const uint4 *>(at + place<LANES>(i, lane, true) * ROW_ALONG + k);
#pragma unroll
                for (int l = 0; l < 4; l++)
                    to[i][l] = piece.e[l];
            }
        } else {
#pragma unroll
            for (int l = 0; l < 4; l++) {
#pragma unroll
                for (int i = 0; i < COUNT; i += 4) {
                    pack<float> piece;
                    piece.bits =
                        *reinterpret_cast<const uint4 *>(at + (k + l) * ROW_ACROSS + place<LANES>(i, lane, false));
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        to[i + j][l] = piece.e[j];
                }
            }
        }
    }
};

template <bool WIDE, int SPLIT> __device__ __forceinline__ void small_run(const cuda_ops_gemm &p)
{
    constexpr int PITCH_MOST = 40, SIZE = SPLIT_PARTS * SMALL_TILE * PITCH_MOST;
    /* Holds the panels, then the sums of each warp. */
    __shared__ __align__(16) float memory[SIZE];
    static_assert(2 * small_panel::SIZE <= SIZE, "room for both");
    __shared__ split_exchange<SPLIT, SMALL_TILE * SMALL_TILE> exchange;
    float *panel_a = memory, *panel_b = memory + small_panel::SIZE;
    const uint32_t works = (uint32_t)(p.tiles_m * p.tiles_n * p.batch_count);
    const uint32_t rank = split_rank<SPLIT>();
    const int warp = threadIdx.x / 32, lane_m = threadIdx.x % 32 / 8, lane_n = threadIdx.x % 8;
    const bool a_along = p.a_access == CUDA_OPS_ACCESS_ALONG_K, b_along = p.b_access == CUDA_OPS_ACCESS_ALONG_K;

    uint32_t turn = 0;

    exchange.begin();
    for (uint32_t work = blockIdx.x / SPLIT; work < works; work += gridDim.x / SPLIT, turn++) {
        const gemm_tile tile = split_locate<SMALL_TILE, SMALL_TILE, false>(p, work);
        const int rows = gemm_left(p.m, tile.row, SMALL_TILE), columns = gemm_left(p.n, tile.column, SMALL_TILE);
        float sum[8][4] = {};

        for (uint64_t k = rank * SMALL_DEPTH; k < p.k; k += SPLIT * SMALL_DEPTH) {
            small_panel::loaded<WIDE> a, b;
            const int left = gemm_left(p.k, k, SMALL_DEPTH);

            a.start(reinterpret_cast<const float *>(p.a.address) + tile.a + k * p.a.column, p.a.row, p.a.column,
                    p.a_access);
            b.start(reinterpret_cast<const float *>(p.b.address) + tile.b + k * p.b.row, p.b.column, p.b.row,
                    p.b_access);
            a.fetch(rows, left);
            b.fetch(columns, left);
            __syncthreads(); /* the last panels have been read */
            small_panel::put(panel_a, a);
            small_panel::put(panel_b, b);
            __syncthreads();
#pragma unroll
            for (int l = 0; l < SMALL_SLICE; l += 4) {
                float x[8][4], y[4][4];
                small_panel::get<8, 4>(x, panel_a, warp * SMALL_SLICE + l, lane_m, a_along);
                small_panel::get<4, 8>(y, panel_b, warp * SMALL_SLICE + l, lane_n, b_along);
#pragma unroll
                for (int s = 0; s < 4; s++) {
#pragma unroll
                    for (int i = 0; i < 8; i++) {
#pragma unroll
                        for (int j = 0; j < 4; j++)
                            sum[i][j] += x[i][s] * y[j][s];
                    }
                }
            }
        }
        __syncthreads();
        /* The pitch makes lanes write to different banks. */
        const int pitch = a_along ? PITCH_MOST : b_along ? 34 : 36;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float *row = memory + (warp * SMALL_TILE + small_panel::place<4>(i, lane_m, a_along)) * pitch;
            if (b_along) {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    row[small_panel::place<8>(j, lane_n, true)] = sum[i][j];
            } else {
                *reinterpret_cast<float4 *>(row + lane_n * 4) = make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
            }
        }
        split_write<float, SPLIT, SMALL_TILE, SMALL_TILE, GEMM_THREADS, false>(p, tile, memory, pitch, exchange, turn);
        if (work + gridDim.x / SPLIT < works)
            exchange.again(); /* before the next tile's panels overwrite the sums */
    }
}

#define CUDA_OPS_GEMM_SMALL_BODY(name, ...)                                                                            \
    kops_gemm_##name(const __grid_constant__ cuda_ops_gemm p)                                                          \
    {                                                                                                                  \
        stamp_start(p.stamps);                                                                                         \
        small_run<__VA_ARGS__>(p);                                                                                     \
        stamp_end(p.stamps);                                                                                           \
    }

/* Defines kops_gemm_<name>, for operands that can be read in 16-byte pieces, and kops_gemm_<name>_any, for any. */
#define CUDA_OPS_GEMM_SMALL(name)                                                                                      \
    extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1)                                                      \
        CUDA_OPS_GEMM_SMALL_BODY(name##_1, true, 1) extern "C" __global__ void                                         \
        __launch_bounds__(GEMM_THREADS, 1) CUDA_OPS_GEMM_SMALL_BODY(name##_1_any, false, 1)
#define CUDA_OPS_GEMM_SMALL_SPLIT(name, split)                                                                         \
    extern "C" __global__ void __cluster_dims__(split, 1, 1) __launch_bounds__(GEMM_THREADS, 1)                        \
        CUDA_OPS_GEMM_SMALL_BODY(name##_##split, true, split) extern "C" __global__ void                               \
        __cluster_dims__(split, 1, 1) __launch_bounds__(GEMM_THREADS, 1)                                               \
            CUDA_OPS_GEMM_SMALL_BODY(name##_##split##_any, false, split)

#endif

/* Matrix product where a has at most 16 rows, bound by reading b once. A warp takes 16 to 64 columns and a few steps of
 * k at a time, straight from global memory to registers. The warps of a block and the blocks of a cluster share the sum
 * over k.
 *
 * b is read in 16-byte pieces along k or along its rows. A sum may take the steps of k in any order, so each thread
 * multiplies the elements of its own pieces, and reads the matching elements of a. Rows and columns that do not exist
 * are read as the last existing one, and not written. */
#ifndef KOPS_CUDA_OPS_GEMM_SKINNY_CUH
#define KOPS_CUDA_OPS_GEMM_SKINNY_CUH

#include "gemm_split.cuh"

enum { SKINNY_ROWS = 16, SKINNY_WARPS = 2 * SPLIT_PARTS, SKINNY_THREADS = CUDA_OPS_SKINNY_THREADS };

/* Reads a piece of which `left` elements exist; the others are 0. */
template <typename T> __device__ __forceinline__ pack<T> skinny_elements(const T *from, uint64_t stride, int64_t left)
{
    pack<T> piece;
#pragma unroll
    for (int i = 0; i < piece.WIDTH; i++)
        piece.e[i] = i < left ? from[i * stride] : T(0.0f);
    return piece;
}

template <typename T> __device__ __forceinline__ pack<T> skinny_piece(const T *from, int64_t left)
{
    pack<T> piece;

    if (left < piece.WIDTH)
        return skinny_elements(from, (uint64_t)1, left);
    piece.bits = *reinterpret_cast<const uint4 *>(from);
    return piece;
}

/* The operands of a tile. WHOLE: all elements that are read exist. */
template <typename T, bool A_PIECES> struct skinny_operands {
    const T *a, *b;
    uint64_t a_row, a_k, b_column, b_k;
    uint64_t m, n, k, column; /* column: the tile's first */

    /* Reads a piece of row `row` of a, from step `from` on. */
    template <bool WHOLE> __device__ __forceinline__ pack<T> rows(uint64_t row, uint64_t from) const
    {
        const T *at = a + (row < m ? row : m - 1) * a_row + from * a_k;
        const int64_t left = WHOLE ? pack<T>::WIDTH : (int64_t)(k - from);
        pack<T> piece;
        if (!A_PIECES)
            return skinny_elements(at, a_k, left);
        if (!WHOLE)
            return skinny_piece(at, left);
        piece.bits = *reinterpret_cast<const uint4 *>(at);
        return piece;
    }

    /* Reads a piece of b, which no other block reads. */
    template <bool WHOLE> static __device__ __forceinline__ pack<T> stream(const T *from, int64_t left)
    {
        pack<T> piece;
        if (!WHOLE)
            return skinny_piece(from, left);
        piece.bits = __ldcs(reinterpret_cast<const uint4 *>(from));
        return piece;
    }

    /* Reads a piece of column `x` of b, from step `from` on. b lies along k. */
    template <bool WHOLE> __device__ __forceinline__ pack<T> along(uint64_t x, uint64_t from) const
    {
        return stream<WHOLE>(b + (WHOLE || x < n ? x : n - 1) * b_column + from, (int64_t)(k - from));
    }

    /* Reads a piece of row `from` of b, from column `x` on. b lies across. */
    template <bool WHOLE> __device__ __forceinline__ pack<T> across(uint64_t x, uint64_t from) const
    {
        return stream<WHOLE>(b + from * b_k + x, from < k ? (int64_t)(n - x) : 0);
    }
};

/* Adds up COUNT values over lanes. For each mask MASK, MASK / 2, … LAST a lane gives half of its values to its partner;
 * the lane whose bit is set keeps the upper half. At the end each lane has the sums of its COUNT / lanes values. */
template <int COUNT, int MASK, int LAST> __device__ __forceinline__ void skinny_gather(float *sum, int lane)
{
    constexpr int HALF = COUNT / 2;
    const bool upper = lane & MASK;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const float keep = upper ? sum[i + HALF] : sum[i], give = upper ? sum[i] : sum[i + HALF];
        sum[i] = keep + __shfl_xor_sync(~0u, give, MASK);
    }
    if constexpr (MASK > LAST)
        skinny_gather<HALF, MASK / 2, LAST>(sum, lane);
}

/* The method without tensor cores: each lane has four columns and four steps of k, and 16 sums for each column.
 * Elements of a that lanes of a warp share go through shared memory. */
template <bool ALONG> struct skinny_f32 {
    using dtype = float;
    static constexpr int LANES_K = ALONG ? 8 : 4, LANES_X = 32 / LANES_K, COLUMNS = LANES_X * 4, STEPS = LANES_K * 4;
    static constexpr int COUNT = SKINNY_ROWS * 4,
                         SCRATCH = SKINNY_ROWS * STEPS; /* elements of a warp's shared memory */
    static constexpr int AHEAD = 1;
    float sum[COUNT];
    struct pieces {
        pack<float> a[SCRATCH / 4 / 32], b[4];
    };

    static __device__ __forceinline__ int lane_k()
    {
        return ALONG ? threadIdx.x % 32 % LANES_K : threadIdx.x % 32 / LANES_X;
    }

    static __device__ __forceinline__ int lane_x()
    {
        return ALONG ? threadIdx.x % 32 / LANES_K : threadIdx.x % 32 % LANES_X;
    }

    template <bool WHOLE, typename Operands>
    static __device__ __forceinline__ pieces load(const Operands &o, uint64_t k)
    {
        const uint64_t from = k + lane_k() * 4, x = o.column + lane_x() * 4;
        const int lane = threadIdx.x % 32;
        pieces p;
#pragma unroll
        for (int i = 0; i < 4; i++)
            p.b[i] = ALONG ? o.template along<WHOLE>(x + i, from) : o.template across<WHOLE>(x, from + i);
#pragma unroll
        for (int i = 0; i < SCRATCH / 4 / 32; i++)
            p.a[i] = o.template rows<WHOLE>((i * 32 + lane) / LANES_K, k + lane % LANES_K * 4);
        return p;
    }

    template <int ROWS> __device__ __forceinline__ void add_rows(const float *a, const pieces &p)
    {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            pack<float> x;
            x.bits = *reinterpret_cast<const uint4 *>(a + r * STEPS + lane_k() * 4);
#pragma unroll
            for (int c = 0; c < 4; c++) {
#pragma unroll
                for (int l = 0; l < 4; l++)
                    sum[r * 4 + c] += x.e[l] * (ALONG ? p.b[c].e[l] : p.b[l].e[c]);
            }
        }
    }

    template <bool WHOLE, typename Operands>
    __device__ __forceinline__ void add(const Operands &o, uint64_t, const pieces &p, float *scratch)
    {
#pragma unroll
        for (int i = 0; i < SCRATCH / 4 / 32; i++)
            *reinterpret_cast<uint4 *>(scratch + (i * 32 + threadIdx.x % 32) * 4) = p.a[i].bits;
        __syncwarp();
        if (o.m <= 4)
            add_rows<4>(scratch, p);
        else
            add_rows<SKINNY_ROWS>(scratch, p);
        __syncwarp();
    }

    /* Writes the sums to `part`, or adds them to it. */
    template <bool ADD> __device__ __forceinline__ void put(float *part)
    {
        constexpr int LEFT = COUNT / LANES_K;
        skinny_gather<COUNT, ALONG ? LANES_K / 2 : 16, ALONG ? 1 : LANES_X>(sum, threadIdx.x % 32);
#pragma unroll
        for (int i = 0; i < LEFT; i++) {
            const int v = lane_k() * LEFT + i;
            float *place = part + v / 4 * COLUMNS + lane_x() * 4 + v % 4;
            *place = ADD ? *place + sum[i] : sum[i];
        }
    }
};

/* The method on tensor cores: m16n8k16 products with a's 16 rows. If b lies along k, a lane's piece has eight steps of
 * a column, its share of two products. Otherwise a piece has eight columns of a row, and a share is put together from
 * four pieces. */
template <typename T, bool ALONG> struct skinny_mma {
    using dtype = T;
    static constexpr int COLUMNS = ALONG ? 32 : 64, GROUPS = COLUMNS / 8, STEPS = ALONG ? 64 : 32;
    static constexpr int SCRATCH = 0, AHEAD = 2;
    float sum[GROUPS][4];
    struct pieces {
        pack<T> at[8];
    };
    static_assert(STEPS / 32 * GROUPS == 8, "as many either way");

    static __device__ __forceinline__ uint32_t pair(T low, T high)
    {
        union {
            T e[2];
            uint32_t bits;
        } both = {{low, high}};
        return both.bits;
    }

    static __device__ __forceinline__ gemm_fragment fragment(const pack<T> &upper, const pack<T> &lower, int s)
    {
        gemm_fragment f;
        f.block[0] = pair(upper.e[s * 4], upper.e[s * 4 + 1]);
        f.block[1] = pair(lower.e[s * 4], lower.e[s * 4 + 1]);
        f.block[2] = pair(upper.e[s * 4 + 2], upper.e[s * 4 + 3]);
        f.block[3] = pair(lower.e[s * 4 + 2], lower.e[s * 4 + 3]);
        return f;
    }

    template <bool WHOLE, typename Operands>
    static __device__ __forceinline__ pieces load(const Operands &o, uint64_t k)
    {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        pieces b;
#pragma unroll
        for (int i = 0; i < 8; i++)
            b.at[i] = ALONG ? o.template along<WHOLE>(o.column + i % 4 * 8 + g, k + i / 4 * 32 + t * 8)
                            : o.template across<WHOLE>(o.column + g * 8, k + t * 8 + i);
        return b;
    }

    template <bool WHOLE, typename Operands>
    __device__ __forceinline__ void add(const Operands &o, uint64_t k, const pieces &pieces, float *)
    {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const pack<T> *b = pieces.at;

        if constexpr (ALONG) {
#pragma unroll
            for (int h = 0; h < STEPS / 32; h++) {
                const pack<T> upper = o.template rows<WHOLE>(g, k + h * 32 + t * 8),
                              lower = o.template rows<WHOLE>(g + 8, k + h * 32 + t * 8);
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    const gemm_fragment a = fragment(upper, lower, s);
#pragma unroll
                    for (int j = 0; j < GROUPS; j++)
                        multiply_add(sum[j], a, pair(b[h * 4 + j].e[s * 4], b[h * 4 + j].e[s * 4 + 1]),
                                     pair(b[h * 4 + j].e[s * 4 + 2], b[h * 4 + j].e[s * 4 + 3]), T());
                }
            }
        } else {
            const pack<T> upper = o.template rows<WHOLE>(g, k + t * 8),
                          lower = o.template rows<WHOLE>(g + 8, k + t * 8);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const gemm_fragment a = fragment(upper, lower, s);
#pragma unroll
                for (int j = 0; j < GROUPS; j++)
                    multiply_add(sum[j], a, pair(b[s * 4].e[j], b[s * 4 + 1].e[j]),
                                 pair(b[s * 4 + 2].e[j], b[s * 4 + 3].e[j]), T());
            }
        }
    }

    /* Column g of group j is 8j + g of the tile, or 8g + j where pieces lie along rows. */
    template <bool ADD> __device__ __forceinline__ void put(float *part)
    {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = lane / 4 + i / 2 * 8, x = lane % 4 * 2 + i % 2;
                float *place = part + row * COLUMNS + (ALONG ? j * 8 + x : x * 8 + j);
                *place = ADD ? *place + sum[j][i] : sum[j][i];
            }
        }
    }
};

/* Computes the warp's share of the sum. With AHEAD 2 the loads of two pieces of work are in flight at a time. */
template <int STRIDE, typename Method, typename Operands>
__device__ __forceinline__ void skinny_sum(Method &method, const Operands &o, uint64_t k, float *scratch)
{
    const bool whole = o.column + Method::COLUMNS <= o.n;

    if constexpr (Method::AHEAD == 2) {
        for (; whole && k + STRIDE + Method::STEPS <= o.k; k += 2 * STRIDE) {
            const typename Method::pieces first = Method::template load<true>(o, k);
            const typename Method::pieces second = Method::template load<true>(o, k + STRIDE);
            method.template add<true>(o, k, first, scratch);
            method.template add<true>(o, k + STRIDE, second, scratch);
        }
    }
    for (; whole && k + Method::STEPS <= o.k; k += STRIDE)
        method.template add<true>(o, k, Method::template load<true>(o, k), scratch);
    for (; k < o.k; k += STRIDE)
        method.template add<false>(o, k, Method::template load<false>(o, k), scratch);
}

template <typename Method, int SPLIT, bool LINEAR, bool A_PIECES>
__device__ __forceinline__ void skinny_tiles(const cuda_ops_gemm &p, float *scratch, float *part,
                                             split_exchange<SPLIT, SKINNY_ROWS * Method::COLUMNS> &exchange)
{
    using T = typename Method::dtype;
    constexpr int SIZE = SKINNY_ROWS * Method::COLUMNS;
    const uint32_t works = (uint32_t)(p.tiles_n * p.batch_count), warp = threadIdx.x / 32;
    uint32_t turn = 0;

    for (uint32_t work = blockIdx.x / SPLIT; work < works; work += gridDim.x / SPLIT, turn++) {
        const gemm_tile tile = split_locate<SKINNY_ROWS, Method::COLUMNS, LINEAR>(p, work);
        const skinny_operands<T, A_PIECES> o = {
            .a = reinterpret_cast<const T *>(p.a.address) + tile.a,
            .b = reinterpret_cast<const T *>(p.b.address) + (tile.b - tile.column * p.b.column),
            .a_row = p.a.row,
            .a_k = p.a.column,
            .b_column = p.b.column,
            .b_k = p.b.row,
            .m = p.m,
            .n = p.n,
            .k = p.k,
            .column = tile.column,
        };
        Method method = {};

        skinny_sum<SPLIT * SKINNY_WARPS * Method::STEPS>(
            method, o, (split_rank<SPLIT>() * SKINNY_WARPS + warp) * Method::STEPS, scratch + warp * Method::SCRATCH);
        if (warp >= SPLIT_PARTS)
            method.template put<false>(part + (warp - SPLIT_PARTS) * SIZE);
        __syncthreads();
        if (warp < SPLIT_PARTS)
            method.template put<true>(part + warp * SIZE);
        split_write<T, SPLIT, SKINNY_ROWS, Method::COLUMNS, SKINNY_THREADS, LINEAR>(p, tile, part, Method::COLUMNS,
                                                                                    exchange, turn);
        if (work + gridDim.x / SPLIT < works)
            exchange.again(); /* before the next tile's sums overwrite these */
    }
}

template <typename Method, int SPLIT, bool LINEAR> __device__ __forceinline__ void skinny_run(const cuda_ops_gemm &p)
{
    constexpr int SIZE = SKINNY_ROWS * Method::COLUMNS;
    __shared__ __align__(16) float scratch[Method::SCRATCH ? SKINNY_WARPS * Method::SCRATCH : 1];
    __shared__ float part[SPLIT_PARTS * SIZE];
    __shared__ split_exchange<SPLIT, SIZE> exchange;

    exchange.begin();
    if (p.a_access == CUDA_OPS_ACCESS_ALONG_K)
        skinny_tiles<Method, SPLIT, LINEAR, true>(p, scratch, part, exchange);
    else
        skinny_tiles<Method, SPLIT, LINEAR, false>(p, scratch, part, exchange);
}

#define CUDA_OPS_SKINNY_BODY(symbol, linear, split, ...)                                                               \
    symbol(const __grid_constant__ cuda_ops_gemm p)                                                                    \
    {                                                                                                                  \
        stamp_start(p.stamps);                                                                                         \
        skinny_run<__VA_ARGS__, split, linear>(p);                                                                     \
        stamp_end(p.stamps);                                                                                           \
    }

/* Defines kops_<op>_<name>_<split>, for one block or a cluster per tile; `linear` is LINEAR of gemm_split.cuh. */
#define CUDA_OPS_SKINNY(op, linear, name, ...)                                                                         \
    extern "C" __global__ void __launch_bounds__(SKINNY_THREADS, 1)                                                    \
        CUDA_OPS_SKINNY_BODY(kops_##op##_##name##_1, linear, 1, __VA_ARGS__)
#define CUDA_OPS_SKINNY_SPLIT(op, linear, name, split, ...)                                                            \
    extern "C" __global__ void __cluster_dims__(split, 1, 1) __launch_bounds__(SKINNY_THREADS, 1)                      \
        CUDA_OPS_SKINNY_BODY(kops_##op##_##name##_##split, linear, split, __VA_ARGS__)

#endif

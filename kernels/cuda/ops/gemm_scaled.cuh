/* Matrix product of 8-bit floats with scales, sums in f32. Elements become f16 on their way to shared memory, and are
 * multiplied as by gemm_mma. f16 has every value of e4m3 and e5m2, so products are exact, on any GPU with tensor cores
 * for f16. The launch tells each operand's format. */
#ifndef KOPS_CUDA_OPS_GEMM_SCALED_CUH
#define KOPS_CUDA_OPS_GEMM_SCALED_CUH

#include "gemm_mma.cuh"
#include "params_scaled.h"

/* Converts two e4m3, given in the upper bytes of two f16. The bias of e4m3's exponent is 8 less than that of f16, and
 * the only NaN has all bits set. */
__device__ __forceinline__ uint32_t f8_from_e4m3(uint32_t upper)
{
    const uint32_t magnitude = upper >> 1 & 0x3f803f80, nan = (magnitude + 0x00800080) & 0x40004000;
    const uint32_t bits = magnitude | (upper & 0x80008000);
    __half2 x;

    *reinterpret_cast<uint32_t *>(&x) = bits;
    x = __hmul2(x, __floats2half2_rn(256.0f, 256.0f)); /* exact, also for subnormal numbers */
    return *reinterpret_cast<uint32_t *>(&x) | nan >> 1;
}

/* Converts four numbers to f16; e5m2 is f16's upper byte. */
__device__ __forceinline__ uint2 f8_widen(uint32_t four, uint32_t format)
{
    uint2 two = make_uint2((four & 0xff) << 8 | (four & 0xff00) << 16, (four >> 8 & 0xff00) | (four & 0xff000000));

    if (format == CUDA_OPS_E4M3) {
        two.x = f8_from_e4m3(two.x);
        two.y = f8_from_e4m3(two.y);
    }
    return two;
}

/* A panel in shared memory, as gemm_mma reads it. */
template <int X, int K> struct gemm_scaled_shared : gemm_mma_shared<__half, X, K> {
    using base = gemm_mma_shared<__half, X, K>;

    template <bool WIDE>
    __device__ __forceinline__ void put_f8(const gemm_panel<uint8_t, X, K, WIDE> &panel, uint32_t format)
    {
        using from = gemm_panel<uint8_t, X, K, WIDE>;
        if (panel.along)
            put_f8_pieces<typename from::share_along, true>(panel, format);
        else
            put_f8_pieces<typename from::share_across, false>(panel, format);
    }

    template <typename Share, bool ALONG, bool WIDE>
    __device__ __forceinline__ void put_f8_pieces(const gemm_panel<uint8_t, X, K, WIDE> &panel, uint32_t format)
    {
#pragma unroll
        for (int i = 0; i < Share::PIECES; i++) {
            __half *place = &this->at[base::template place<Share, ALONG>(i)];
            if (WIDE) {
                const uint4 bits = panel.packs[i % panel.PACKS].bits;
                const uint2 a = f8_widen(bits.x, format), b = f8_widen(bits.y, format), c = f8_widen(bits.z, format),
                            d = f8_widen(bits.w, format);
                reinterpret_cast<uint4 *>(place)[0] = make_uint4(a.x, a.y, b.x, b.y);
                reinterpret_cast<uint4 *>(place)[1] = make_uint4(c.x, c.y, d.x, d.y);
            } else {
                *reinterpret_cast<uint16_t *>(place) = (uint16_t)f8_widen(panel.e[i % panel.ELEMENTS], format).x;
            }
        }
    }
};

/* A tile, and offsets of its scales. */
struct gemm_scaled_tile {
    gemm_tile tile;
    uint64_t scale_a, scale_b;
};

template <int M, int N>
__device__ __forceinline__ gemm_scaled_tile gemm_scaled_locate(const cuda_ops_gemm_scaled &p, uint64_t work)
{
    gemm_scaled_tile t;
    t.tile = gemm_locate<M, N, false>(p.gemm, work);
    uint64_t batch = work / (p.gemm.tiles_m * p.gemm.tiles_n), offset_a = 0, offset_b = 0;
    for (uint32_t d = 0; d < p.gemm.batch_rank; d++) {
        const uint64_t i = d + 1 == p.gemm.batch_rank ? batch : batch % p.gemm.batch_shape[d];
        batch /= p.gemm.batch_shape[d];
        offset_a += i * p.scale_a.batch[d];
        offset_b += i * p.scale_b.batch[d];
    }
    t.scale_a = offset_a + t.tile.row * p.scale_a.row;
    t.scale_b = offset_b + t.tile.column * p.scale_b.column;
    return t;
}

template <int M, int N, int K, int WARP_M, int WARP_N> struct gemm_scaled {
    using mma = gemm_mma<__half, M, N, K, WARP_M, WARP_N>;
    using shared_a = gemm_scaled_shared<M, K>;
    using shared_b = gemm_scaled_shared<N, K>;
    using sums = typename mma::sums;
    static constexpr int ROWS = M, COLUMNS = N, DEPTH = K;

    /* Scales the sums in place. Positions of sums are as in gemm_mma's write(). */
    static __device__ __forceinline__ void scale(const cuda_ops_gemm_scaled &p, const gemm_scaled_tile &t, sums &sum)
    {
        const int lane = threadIdx.x % 32, row = mma::warp_row() + lane / 4, column = mma::warp_column() + lane % 4 * 2;
        const int rows = gemm_left(p.gemm.m, t.tile.row, M), columns = gemm_left(p.gemm.n, t.tile.column, N);
        const float *of_rows = reinterpret_cast<const float *>(p.scale_a.address) + t.scale_a;
        const float *of_columns = reinterpret_cast<const float *>(p.scale_b.address) + t.scale_b;

#pragma unroll
        for (int i = 0; i < mma::STEPS_M * 2; i++) {
            const int r = row + i * 8;
            const float of_row = r < rows ? of_rows[r * p.scale_a.row] : 0;
#pragma unroll
            for (int j = 0; j < mma::STEPS_N * 2; j++)
                sum.at[i / 2][j / 2][i % 2 * 2 + j % 2] *= of_row;
        }
#pragma unroll
        for (int j = 0; j < mma::STEPS_N * 2; j++) {
            const int c = column + j / 2 * 8 + j % 2;
            const float of_column = c < columns ? of_columns[c * p.scale_b.column] : 0;
#pragma unroll
            for (int i = 0; i < mma::STEPS_M * 2; i++)
                sum.at[i / 2][j / 2][i % 2 * 2 + j % 2] *= of_column;
        }
    }

    static __device__ __forceinline__ void write(const cuda_ops_gemm_scaled &p, const gemm_tile &tile, const sums &sum)
    {
        if (p.out_type == CUDA_OPS_OUT_BF16)
            mma::template write<__nv_bfloat16, false>(p.gemm, tile, sum);
        else if (p.out_type == CUDA_OPS_OUT_F16)
            mma::template write<__half, false>(p.gemm, tile, sum);
        else
            mma::template write<float, false>(p.gemm, tile, sum);
    }
};

/* Runs as gemm_run(): one panel is filled while the other is used. */
template <typename Method, bool WIDE> __device__ __forceinline__ void gemm_scaled_run(const cuda_ops_gemm_scaled &p)
{
    constexpr int M = Method::ROWS, N = Method::COLUMNS, K = Method::DEPTH;
    __shared__ __align__(16) unsigned char memory_a[2][sizeof(typename Method::shared_a)];
    __shared__ __align__(16) unsigned char memory_b[2][sizeof(typename Method::shared_b)];
    __shared__ gemm_scaled_tile t;
    auto *shared_a = reinterpret_cast<typename Method::shared_a *>(memory_a);
    auto *shared_b = reinterpret_cast<typename Method::shared_b *>(memory_b);
    const uint64_t works = p.gemm.tiles_m * p.gemm.tiles_n * p.gemm.batch_count;

    for (uint64_t work = blockIdx.x; work < works; work += gridDim.x) {
        if (threadIdx.x == 0)
            t = gemm_scaled_locate<M, N>(p, work);
        __syncthreads();
        const int rows = gemm_left(p.gemm.m, t.tile.row, M), columns = gemm_left(p.gemm.n, t.tile.column, N);
        typename Method::sums sum = {};
        gemm_panel<uint8_t, M, K, WIDE> a;
        gemm_panel<uint8_t, N, K, WIDE> b;
        uint64_t left = p.gemm.k;
        int now = 0;

        a.start(reinterpret_cast<const uint8_t *>(p.gemm.a.address) + t.tile.a, p.gemm.a.row, p.gemm.a.column,
                p.gemm.a_access);
        b.start(reinterpret_cast<const uint8_t *>(p.gemm.b.address) + t.tile.b, p.gemm.b.column, p.gemm.b.row,
                p.gemm.b_access);
        if (left) {
            a.fetch(rows, left < K ? (int)left : K);
            b.fetch(columns, left < K ? (int)left : K);
            shared_a[0].put_f8(a, p.a_format);
            shared_b[0].put_f8(b, p.b_format);
            __syncthreads();
        }
        while (left > K) {
            left -= K;
            a.fetch(rows, left < K ? (int)left : K);
            b.fetch(columns, left < K ? (int)left : K);
            Method::mma::multiply(p.gemm, shared_a[now], shared_b[now], sum);
            now ^= 1;
            shared_a[now].put_f8(a, p.a_format);
            shared_b[now].put_f8(b, p.b_format);
            __syncthreads();
        }
        if (left)
            Method::mma::multiply(p.gemm, shared_a[now], shared_b[now], sum);
        Method::scale(p, t, sum);
        Method::write(p, t.tile, sum);
        __syncthreads(); /* before the next tile overwrites `t` and the panels */
    }
}

#define CUDA_OPS_GEMM_SCALED_KERNEL(symbol, blocks, wide, ...)                                                         \
    extern "C" __global__ void __launch_bounds__(GEMM_THREADS, blocks)                                                 \
        symbol(const __grid_constant__ cuda_ops_gemm_scaled p)                                                         \
    {                                                                                                                  \
        stamp_start(p.gemm.stamps);                                                                                    \
        gemm_scaled_run<gemm_scaled<__VA_ARGS__>, wide>(p);                                                            \
        stamp_end(p.gemm.stamps);                                                                                      \
    }

/* Defines kops_scaled_gemm_<name>, for operands that can be read in 16-byte pieces, and …_any, for all operands. */
#define CUDA_OPS_GEMM_SCALED(name, blocks, ...)                                                                        \
    CUDA_OPS_GEMM_SCALED_KERNEL(kops_scaled_gemm_##name, blocks, true, __VA_ARGS__)                                    \
    CUDA_OPS_GEMM_SCALED_KERNEL(kops_scaled_gemm_##name##_any, 1, false, __VA_ARGS__)

#endif

/* Copies matrices for gemm: to aligned rows, padded with zeros, or split into bf16 pieces. One launch copies both
 * inputs. Memory is read in aligned 16-byte words, also before and behind rows, which is safe: a word with a byte of
 * the matrix lies in a page of the matrix. */
#ifndef KOPS_CUDA_OPS_REPACK_CUH
#define KOPS_CUDA_OPS_REPACK_CUH

#include "dtypes.cuh"
#include "elementwise.cuh"
#include "params.h"
#include "stamp.cuh"

/* Reads 4·N 32-bit words from `from`, aligned to an element. Words behind the first `valid` bytes are undefined. */
template <int N> __device__ __forceinline__ void read_unaligned(uint32_t (&to)[4 * N], uint64_t from, uint32_t valid)
{
    const uint64_t base = from & ~UINT64_C(15), end = from + valid;
    const uint32_t words = (uint32_t)from >> 2 & 3, bits = ((uint32_t)from & 3) * 8;
    uint32_t w[4 * N + 4];
#pragma unroll
    for (int i = 0; i <= N; i++) {
        uint4 word = make_uint4(0, 0, 0, 0);
        if (base + 16 * i < end)
            word = *reinterpret_cast<const uint4 *>(base + 16 * i);
        w[4 * i] = word.x;
        w[4 * i + 1] = word.y;
        w[4 * i + 2] = word.z;
        w[4 * i + 3] = word.w;
    }
    if (words & 1) {
#pragma unroll
        for (int i = 0; i < 4 * N + 3; i++)
            w[i] = w[i + 1];
    }
    if (words & 2) {
#pragma unroll
        for (int i = 0; i < 4 * N + 2; i++)
            w[i] = w[i + 2];
    }
#pragma unroll
    for (int i = 0; i < 4 * N; i++)
        to[i] = (uint32_t)(((uint64_t)w[i + 1] << 32 | w[i]) >> bits);
}

/* The position of a thread's chunk. */
struct repack_place {
    uint64_t from, to; /* element offsets of the row's beginning */
    uint64_t chunk;    /* number of the chunk in the row */
    bool is_inside;    /* the source has the row */
};

__device__ __forceinline__ repack_place repack_locate(const cuda_ops_repack_part &p, uint64_t n)
{
    repack_place at;
    const uint64_t row = divide(n, p.chunks);
    uint64_t batch = divide(row, p.height);
    const uint64_t i = row - batch * p.height.divisor;

    at.chunk = n - row * p.chunks.divisor;
    at.is_inside = i < p.rows;
    at.from = i * p.row;
    at.to = i * p.to_row;
    for (uint32_t d = 0; d < p.batch_rank; d++) {
        const bool last = d + 1 == p.batch_rank;
        const uint64_t quotient = last ? 0 : batch / p.batch_shape[d];
        const uint64_t index = batch - quotient * p.batch_shape[d];

        at.from += index * p.batch[d];
        at.to += index * p.to_batch[d];
        batch = quotient;
    }
    return at;
}

/* Reads element j of the source's row; 0: outside. */
template <typename T>
__device__ __forceinline__ T repack_element(const cuda_ops_repack_part &p, const repack_place &at, uint64_t j)
{
    return at.is_inside && j < p.columns ? reinterpret_cast<const T *>(p.from)[at.from + j * p.column] : T(0);
}

template <typename T> __device__ __forceinline__ T repack_pick(const uint32_t *words, int i)
{
    if constexpr (sizeof(T) == 8) {
        return (T)words[2 * i + 1] << 32 | words[2 * i];
    } else {
        constexpr int PER_WORD = 4 / sizeof(T);
        return (T)(words[i / PER_WORD] >> (i % PER_WORD * sizeof(T) * 8 % 32));
    }
}

/* Reads N elements from element j on; elements behind the row's end are 0. */
template <typename T, int N>
__device__ __forceinline__ void repack_read(const cuda_ops_repack_part &p, const repack_place &at, uint64_t j,
                                            T (&x)[N])
{
    constexpr int WORDS = N * sizeof(T) / 4;

    if (p.column != 1 || !at.is_inside || j >= p.columns) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = repack_element<T>(p, at, j + i);
        return;
    }
    const uint32_t valid = p.columns - j < N ? (uint32_t)(p.columns - j) : N;
    uint32_t words[WORDS];
    read_unaligned<WORDS / 4>(words, p.from + (at.from + j) * sizeof(T), valid * sizeof(T));
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = (uint32_t)i < valid ? repack_pick<T>(words, i) : T(0);
}

template <typename T> __device__ __forceinline__ void repack_copy(const cuda_ops_repack_part &p, uint64_t n)
{
    constexpr int N = 16 / sizeof(T);
    const repack_place at = repack_locate(p, n);
    T *to = reinterpret_cast<T *>(p.to) + at.to;
    const uint64_t head = p.to_column == 1 ? (reinterpret_cast<uint64_t>(to) & 15) / sizeof(T) : 0;
    const uint64_t end = (at.chunk + 1) * N; /* the chunk's end, counted from `head` elements before the row */

    if (p.to_column == 1 && end - N >= head && end - head <= p.to_columns) {
        T x[N];
        pack<T> stored;
        repack_read<T, N>(p, at, end - N - head, x);
#pragma unroll
        for (int i = 0; i < N; i++)
            stored.e[i] = x[i];
        *reinterpret_cast<uint4 *>(to + (end - N - head)) = stored.bits;
        return;
    }
    for (uint64_t j = end - N; j < end; j++)
        if (j >= head && j - head < p.to_columns)
            to[(j - head) * p.to_column] = repack_element<T>(p, at, j - head);
}

/* Splits a number: piece[i] · 2^(-7i) is what the pieces before it leave of x. */
template <int PIECES> __device__ __forceinline__ void split_bf16(float x, __nv_bfloat16 (&piece)[PIECES])
{
    constexpr float STEP = 128.0f;

    if (!isfinite(x)) {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            piece[i] = __float2bfloat16_rn(i + 1 < PIECES ? 0.0f : x);
        return;
    }
    const bool cut = isinf(__bfloat162float(__float2bfloat16_rn(x)));
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        piece[i] = cut ? __float2bfloat16_rz(x) : __float2bfloat16_rn(x);
        x = (x - __bfloat162float(piece[i])) * STEP;
    }
}

/* Splits chunk n. Rows of `to` begin on 16-byte boundaries, and are whole chunks. */
template <int PIECES> __device__ __forceinline__ void repack_split(const cuda_ops_repack_part &p, uint64_t n)
{
    constexpr int N = 8;
    const repack_place at = repack_locate(p, n);
    const uint64_t j = at.chunk * N;
    uint32_t x[N];
    pack<__nv_bfloat16> stored[PIECES];

    repack_read<uint32_t, N>(p, at, j, x);
#pragma unroll
    for (int i = 0; i < N; i++) {
        __nv_bfloat16 piece[PIECES];
        split_bf16<PIECES>(__uint_as_float(x[i]), piece);
#pragma unroll
        for (int k = 0; k < PIECES; k++)
            stored[k].e[i] = piece[k];
    }
#pragma unroll
    for (int k = 0; k < PIECES; k++)
        *reinterpret_cast<uint4 *>(reinterpret_cast<__nv_bfloat16 *>(p.to) + at.to + p.pieces[k] + j) = stored[k].bits;
}

/* Divides the chunks of the parts among the blocks. */
template <typename Chunk> __device__ __forceinline__ void repack_kernel(const cuda_ops_repack &p, Chunk take)
{
    const bool first = blockIdx.x < p.first_blocks;
    const cuda_ops_repack_part &part = p.parts[first ? 0 : 1];
    const uint64_t block = first ? blockIdx.x : blockIdx.x - p.first_blocks;
    const uint64_t blocks = first ? p.first_blocks : gridDim.x - p.first_blocks;

    for (uint64_t n = block * CUDA_OPS_THREADS + threadIdx.x; n < part.count; n += blocks * CUDA_OPS_THREADS)
        take(part, n);
}

#define CUDA_OPS_REPACK(name, take)                                                                                    \
    extern "C" __global__ void __launch_bounds__(CUDA_OPS_THREADS)                                                     \
        kops_repack_##name(const __grid_constant__ cuda_ops_repack p)                                                  \
    {                                                                                                                  \
        stamp_start(p.stamps);                                                                                         \
        repack_kernel(p, [](const cuda_ops_repack_part &part, uint64_t n) { take(part, n); });                         \
        stamp_end(p.stamps);                                                                                           \
    }

#endif

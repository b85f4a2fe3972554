/* The bodies of the elementwise kernels. An op is a struct with a static apply() on wide values and ARITY 1 or 2.
 *
 * Reads are plain or evict-first loads, never the read-only path: out may be an input. Every element is read by the
 * thread that writes it, before it writes. */
#ifndef KOPS_CUDA_OPS_ELEMENTWISE_CUH
#define KOPS_CUDA_OPS_ELEMENTWISE_CUH

#include "dtypes.cuh"
#include "params.h"
#include "stamp.cuh"

enum cache_hint { CACHE_DEFAULT, CACHE_STREAM };

template <cache_hint HINT> __device__ __forceinline__ uint4 load_bits(const uint4 *from)
{
    return HINT == CACHE_STREAM ? __ldcs(from) : *from;
}

template <cache_hint HINT> __device__ __forceinline__ void store_bits(uint4 *to, uint4 bits)
{
    if (HINT == CACHE_STREAM)
        __stcs(to, bits);
    else
        *to = bits;
}

template <typename T, typename Op> __device__ __forceinline__ pack<T> apply_pack(const pack<T> &a, const pack<T> &b)
{
    pack<T> y;
#pragma unroll
    for (int i = 0; i < pack<T>::WIDTH; i++)
        y.e[i] = element<T>::narrow(Op::apply(widen(a.e[i]), widen(b.e[i])));
    return y;
}

/* Pack `index` of an operand that is a scalar, aligned, or not aligned. */
template <typename T, cache_hint HINT>
__device__ __forceinline__ pack<T> read_pack(const T *from, uint64_t index, uint32_t step, uint32_t aligned)
{
    pack<T> x;
    if (step && aligned) {
        x.bits = load_bits<HINT>(reinterpret_cast<const uint4 *>(from) + index);
    } else {
        const T *first = from + (step ? index * pack<T>::WIDTH : 0);
#pragma unroll
        for (int i = 0; i < pack<T>::WIDTH; i++)
            x.e[i] = first[step ? i : 0];
    }
    return x;
}

/* Blocks take tiles of BLOCK · UNROLL packs; UNROLL independent 16-byte loads an operand are in flight a thread. */
template <typename T, typename Op, int BLOCK, int UNROLL, cache_hint LOADS, cache_hint STORES>
__device__ __forceinline__ void vector_packs(const cuda_ops_vector &p, uint64_t packs)
{
    constexpr uint32_t TILE = BLOCK * UNROLL;
    const T *a = reinterpret_cast<const T *>(p.a) + (p.a_step ? p.head : 0);
    const T *b = reinterpret_cast<const T *>(p.b) + (p.b_step ? p.head : 0);
    uint4 *out = reinterpret_cast<uint4 *>(reinterpret_cast<T *>(p.out) + p.head);
    const bool all_aligned = p.a_step && p.a_aligned && (Op::ARITY == 1 || (p.b_step && p.b_aligned));

    for (uint64_t tile = (uint64_t)blockIdx.x * TILE; tile < packs; tile += (uint64_t)gridDim.x * TILE) {
        const uint64_t first = tile + threadIdx.x;
        if (all_aligned && packs - tile >= TILE) {
            pack<T> x[UNROLL], y[UNROLL];
            const uint4 *from_a = reinterpret_cast<const uint4 *>(a) + first;
            const uint4 *from_b = reinterpret_cast<const uint4 *>(b) + first;
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                x[u].bits = load_bits<LOADS>(from_a + u * BLOCK);
                if (Op::ARITY == 2)
                    y[u].bits = load_bits<LOADS>(from_b + u * BLOCK);
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                store_bits<STORES>(out + first + u * BLOCK, apply_pack<T, Op>(x[u], y[u]).bits);
        } else {
            const uint64_t end = packs - tile < TILE ? packs : tile + TILE;
#pragma unroll 1
            for (uint64_t i = first; i < end; i += BLOCK) {
                pack<T> x = read_pack<T, LOADS>(a, i, p.a_step, p.a_aligned), y;
                if (Op::ARITY == 2)
                    y = read_pack<T, LOADS>(b, i, p.b_step, p.b_aligned);
                store_bits<STORES>(out + i, apply_pack<T, Op>(x, y).bits);
            }
        }
    }
}

template <typename T, typename Op, int BLOCK = CUDA_OPS_THREADS, int UNROLL = CUDA_OPS_VECTOR_PACKS,
          cache_hint LOADS = CACHE_DEFAULT, cache_hint STORES = CACHE_DEFAULT>
__device__ __forceinline__ void vector_kernel(const cuda_ops_vector &p)
{
    const uint64_t packs = (p.count - p.head) / pack<T>::WIDTH;

    vector_packs<T, Op, BLOCK, UNROLL, LOADS, STORES>(p, packs);

    /* Elements before and behind the packs: fewer than two packs together. */
    const uint32_t tail = (uint32_t)(p.count - p.head - packs * pack<T>::WIDTH);
    if (blockIdx.x == 0 && threadIdx.x < p.head + tail) {
        const uint64_t i = threadIdx.x < p.head ? threadIdx.x : p.count - tail + (threadIdx.x - p.head);
        const auto x = widen(reinterpret_cast<const T *>(p.a)[p.a_step ? i : 0]);
        auto y = x;
        if (Op::ARITY == 2)
            y = widen(reinterpret_cast<const T *>(p.b)[p.b_step ? i : 0]);
        reinterpret_cast<T *>(p.out)[i] = element<T>::narrow(Op::apply(x, y));
    }
}

__device__ __forceinline__ uint32_t divide(uint32_t n, const cuda_ops_divider &d)
{
    return (__umulhi(n, (uint32_t)d.magic) + n) >> d.shift;
}

__device__ __forceinline__ uint64_t divide(uint64_t n, const cuda_ops_divider &d)
{
    return (__umul64hi(n, d.magic) + n) >> d.shift;
}

/* Element number n of the iteration space as element offsets. Index is uint32_t where the count and all offsets are
 * below 2^31, else uint64_t. */
template <int ARITY, typename Index>
__device__ __forceinline__ void locate(const cuda_ops_strided &p, Index n, Index &out, Index &a, Index &b)
{
    out = a = b = 0;
#pragma unroll
    for (int d = 0; d < CUDA_OPS_MAX_RANK; d++) {
        Index i = n;
        const bool last = d + 1 == CUDA_OPS_MAX_RANK || d + 1 == (int)p.rank;
        if (!last) {
            const Index quotient = divide(n, p.sizes[d]);
            i = n - quotient * (Index)p.sizes[d].divisor;
            n = quotient;
        }
        out += i * (Index)p.out_strides[d];
        a += i * (Index)p.a_strides[d];
        if (ARITY == 2)
            b += i * (Index)p.b_strides[d];
        if (last)
            break;
    }
}

/* Neighbouring threads take neighbouring elements of out; UNROLL of them a thread are in flight. */
template <typename T, typename Op, typename Index, int BLOCK = CUDA_OPS_THREADS, int UNROLL = CUDA_OPS_STRIDED_ELEMENTS>
__device__ __forceinline__ void strided_kernel(const cuda_ops_strided &p)
{
    const T *in_a = reinterpret_cast<const T *>(p.a), *in_b = reinterpret_cast<const T *>(p.b);
    T *to = reinterpret_cast<T *>(p.out);

    for (uint64_t tile = (uint64_t)blockIdx.x * (BLOCK * UNROLL); tile < p.count;
         tile += (uint64_t)gridDim.x * (BLOCK * UNROLL)) {
        Index out[UNROLL], a[UNROLL], b[UNROLL];
        T x[UNROLL], y[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const uint64_t n = tile + u * BLOCK + threadIdx.x;
            if (n >= p.count)
                continue;
            locate<Op::ARITY>(p, (Index)n, out[u], a[u], b[u]);
            x[u] = in_a[a[u]];
            y[u] = Op::ARITY == 2 ? in_b[b[u]] : x[u];
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (tile + u * BLOCK + threadIdx.x < p.count)
                to[out[u]] = element<T>::narrow(Op::apply(widen(x[u]), widen(y[u])));
        }
    }
}

#define CUDA_OPS_ELEMENTWISE(op, dtype, T, Op)                                                                         \
    extern "C" __global__ void __launch_bounds__(CUDA_OPS_THREADS)                                                     \
        kops_##op##_##dtype##_vector(const __grid_constant__ cuda_ops_vector p)                                        \
    {                                                                                                                  \
        stamp_start(p.stamps);                                                                                         \
        vector_kernel<T, Op>(p);                                                                                       \
        stamp_end(p.stamps);                                                                                           \
    }                                                                                                                  \
    CUDA_OPS_STRIDED(op##_##dtype, T, Op)

#define CUDA_OPS_STRIDED(name, T, Op)                                                                                  \
    extern "C" __global__ void __launch_bounds__(CUDA_OPS_THREADS)                                                     \
        kops_##name##_strided(const __grid_constant__ cuda_ops_strided p)                                              \
    {                                                                                                                  \
        stamp_start(p.stamps);                                                                                         \
        strided_kernel<T, Op, uint32_t>(p);                                                                            \
        stamp_end(p.stamps);                                                                                           \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(CUDA_OPS_THREADS)                                                     \
        kops_##name##_strided64(const __grid_constant__ cuda_ops_strided p)                                            \
    {                                                                                                                  \
        stamp_start(p.stamps);                                                                                         \
        strided_kernel<T, Op, uint64_t>(p);                                                                            \
        stamp_end(p.stamps);                                                                                           \
    }

#define CUDA_OPS_ELEMENTWISE_FLOATS(op, Op)                                                                            \
    CUDA_OPS_ELEMENTWISE(op, f32, float, Op)                                                                           \
    CUDA_OPS_ELEMENTWISE(op, f64, double, Op)                                                                          \
    CUDA_OPS_ELEMENTWISE(op, f16, __half, Op)                                                                          \
    CUDA_OPS_ELEMENTWISE(op, bf16, __nv_bfloat16, Op)

/* Signed integers take the kernels of unsigned ones. */
#define CUDA_OPS_ELEMENTWISE_NUMBERS(op, Op)                                                                           \
    CUDA_OPS_ELEMENTWISE_FLOATS(op, Op)                                                                                \
    CUDA_OPS_ELEMENTWISE(op, u8, uint8_t, Op)                                                                          \
    CUDA_OPS_ELEMENTWISE(op, u16, uint16_t, Op)                                                                        \
    CUDA_OPS_ELEMENTWISE(op, u32, uint32_t, Op)                                                                        \
    CUDA_OPS_ELEMENTWISE(op, u64, uint64_t, Op)

#endif

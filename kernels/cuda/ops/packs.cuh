/* 16 bytes at a time: loads and stores with cache hints, and operands that lie at any offset from a 16-byte boundary.
 *
 * Such an operand is read in aligned pieces, of which two neighbours are shifted together in registers. A piece is read
 * only where it holds a byte that is wanted: nothing beyond the pages of the operand is touched. */
#ifndef KOPS_CUDA_OPS_PACKS_CUH
#define KOPS_CUDA_OPS_PACKS_CUH

#include "dtypes.cuh"

enum cache_hint : int { CACHE_DEFAULT, CACHE_STREAM };

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

template <typename T> __device__ __forceinline__ uint4 repeat_element(T x)
{
    pack<T> all;
#pragma unroll
    for (int i = 0; i < pack<T>::WIDTH; i++)
        all.e[i] = x;
    return all.bits;
}

/* The 16 bytes from byte `shift` of low and high on; shift < 16, a multiple of SIZE. */
template <int SIZE> __device__ __forceinline__ uint4 join_bits(uint4 low, uint4 high, uint32_t shift)
{
    uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (shift & 8) {
#pragma unroll
        for (int i = 0; i < 6; i++)
            w[i] = w[i + 2];
    }
    if (SIZE <= 4 && shift & 4) {
#pragma unroll
        for (int i = 0; i < 5; i++)
            w[i] = w[i + 1];
    }
    if (SIZE <= 2) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = __funnelshift_r(w[i], w[i + 1], shift % 4 * 8);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* A contiguous operand, or one element of it for all. */
struct pack_source {
    const uint4 *pieces; /* aligned; NULL: one element */
    uint32_t shift;      /* bytes from there to the operand's first */
    bool plain;          /* neither one element nor shifted */
    uint4 repeated;
};

/* From element `skip` on. */
template <typename T> __device__ __forceinline__ pack_source source_of(uint64_t address, bool steps, uint32_t skip)
{
    pack_source s = {nullptr, 0, false, make_uint4(0, 0, 0, 0)};
    if (steps) {
        const uint64_t first = address + (uint64_t)skip * sizeof(T);
        s.shift = (uint32_t)(first % 16);
        s.pieces = reinterpret_cast<const uint4 *>(first - s.shift);
        s.plain = s.shift == 0;
    } else {
        s.repeated = repeat_element(*reinterpret_cast<const T *>(address));
    }
    return s;
}

/* What is loaded of a pack, before it is put together: loads of several packs can be in flight. */
struct pack_bits {
    uint4 low, high;
};

template <cache_hint HINT, bool PLAIN> __device__ __forceinline__ pack_bits load_pack(const pack_source &s, uint64_t i)
{
    pack_bits x;
    if (PLAIN) {
        x.low = load_bits<HINT>(s.pieces + i);
    } else if (s.pieces) {
        x.low = load_bits<CACHE_DEFAULT>(s.pieces + i);
        if (s.shift)
            x.high = load_bits<CACHE_DEFAULT>(s.pieces + i + 1);
    } else {
        x.low = s.repeated;
    }
    return x;
}

template <int SIZE, bool PLAIN> __device__ __forceinline__ uint4 join_pack(const pack_source &s, const pack_bits &x)
{
    return !PLAIN && s.shift ? join_bits<SIZE>(x.low, x.high, s.shift) : x.low;
}

/* 16 bytes of a row, from element `first` on, of which the row has [begin, end); the others are anything. */
template <typename T>
__device__ __forceinline__ uint4 read_row(uint64_t row, bool steps, int64_t first, int64_t begin, int64_t end)
{
    if (!steps)
        return repeat_element(*reinterpret_cast<const T *>(row));
    const uint64_t address = row + (uint64_t)first * sizeof(T);
    const uint32_t shift = (uint32_t)(address % 16);
    const uint4 *pieces = reinterpret_cast<const uint4 *>(address - shift);
    uint4 low = make_uint4(0, 0, 0, 0), high = low;
    if (address - shift + 16 > row + (uint64_t)begin * sizeof(T))
        low = pieces[0];
    if (shift && address - shift + 16 < row + (uint64_t)end * sizeof(T))
        high = pieces[1];
    return join_bits<sizeof(T)>(low, high, shift);
}

#endif

/* Packs of 16 bytes: loads and stores with cache hints, also of operands at any offset from a 16-byte boundary.
 *
 * A misaligned operand is read in aligned pieces, of which two neighbours are shifted together in registers. Only
 * pieces with at least one wanted byte are read, and no byte behind the operand. */
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

/* Returns 16 bytes of low and high together, from byte `shift` on; shift < 16, a multiple of SIZE. */
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

/* A contiguous operand, or a single element that repeats. */
struct pack_source {
    const uint4 *pieces; /* aligned; NULL: a single element */
    uint32_t shift;      /* bytes from `pieces` to the operand's first element */
    bool plain;          /* neither a single element nor shifted */
    uint4 repeated;
};

/* Makes the source of an operand's elements from number `skip` on. */
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

/* The loaded pieces of a pack before they are joined, so that loads of several packs can be in flight. */
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

/* A row of an operand, or a single element that repeats. */
struct row_source {
    uint64_t address;
    bool steps;
    uint4 repeated;
};

template <typename T> __device__ __forceinline__ row_source row_of(uint64_t address, bool steps)
{
    row_source s = {address, steps, make_uint4(0, 0, 0, 0)};
    if (!steps)
        s.repeated = repeat_element(*reinterpret_cast<const T *>(address));
    return s;
}

/* Loads the elements of a piece that end at `end` or before. */
template <typename T> __device__ __forceinline__ uint4 load_until(uint64_t piece, uint64_t end)
{
    if (piece + 16 <= end)
        return *reinterpret_cast<const uint4 *>(piece);
    pack<T> x;
#pragma unroll
    for (int i = 0; i < pack<T>::WIDTH; i++) {
        if (piece + (i + 1) * sizeof(T) <= end)
            x.e[i] = reinterpret_cast<const T *>(piece)[i];
    }
    return x.bits;
}

/* Loads the pieces for 16 bytes of a row, from element `first` on. Bytes outside of the row's `size` elements are
 * undefined. All pieces of a row have equal shifts. The operand's last element ends at `end`. */
template <typename T>
__device__ __forceinline__ pack_bits load_row(const row_source &s, int64_t first, int64_t size, uint64_t end)
{
    const uint64_t address = s.address + (uint64_t)first * sizeof(T), piece = address & ~(uint64_t)15;
    pack_bits x = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
    if (s.steps) {
        const uint64_t row_end = s.address + (uint64_t)size * sizeof(T);
        if (piece + 16 > s.address && piece < row_end)
            x.low = load_until<T>(piece, end);
        if (piece != address && piece + 32 > s.address && piece + 16 < row_end)
            x.high = load_until<T>(piece + 16, end);
    }
    return x;
}

template <typename T> __device__ __forceinline__ uint4 join_row(const row_source &s, int64_t first, const pack_bits &x)
{
    return s.steps ? join_bits<sizeof(T)>(x.low, x.high, (uint32_t)((s.address + (uint64_t)first * sizeof(T)) % 16))
                   : s.repeated;
}

#endif

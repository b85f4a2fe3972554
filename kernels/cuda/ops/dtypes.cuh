/* Element types of the kernels: the wide type in which each is computed, and the rounding back. */
#ifndef KOPS_CUDA_OPS_DTYPES_CUH
#define KOPS_CUDA_OPS_DTYPES_CUH

#include <stdint.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* widen(x) is exact; element<T>::narrow(y) rounds to nearest even, and drops the upper bits of integers. */
__device__ __forceinline__ float widen(float x)
{
    return x;
}

__device__ __forceinline__ double widen(double x)
{
    return x;
}

__device__ __forceinline__ float widen(__half x)
{
    return __half2float(x);
}

__device__ __forceinline__ float widen(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

template <typename T> struct element;

template <> struct element<float> {
    using wide = float;
    static __device__ __forceinline__ float narrow(float y)
    {
        return y;
    }
};

template <> struct element<double> {
    using wide = double;
    static __device__ __forceinline__ double narrow(double y)
    {
        return y;
    }
};

template <> struct element<__half> {
    using wide = float;
    static __device__ __forceinline__ __half narrow(float y)
    {
        return __float2half_rn(y);
    }
};

template <> struct element<__nv_bfloat16> {
    using wide = float;
    static __device__ __forceinline__ __nv_bfloat16 narrow(float y)
    {
        return __float2bfloat16_rn(y);
    }
};

/* Integers, and elements that are only copied. Sums and products wrap around, so signed and unsigned ones have equal
 * bits. Small integers are computed as uint32_t: the product of two uint16_t would be an int, which overflows. */
#define CUDA_OPS_INTEGER(T, W)                                                                                         \
    __device__ __forceinline__ W widen(T x)                                                                            \
    {                                                                                                                  \
        return x;                                                                                                      \
    }                                                                                                                  \
    template <> struct element<T> {                                                                                    \
        using wide = W;                                                                                                \
        static __device__ __forceinline__ T narrow(W y)                                                                \
        {                                                                                                              \
            return (T)y;                                                                                               \
        }                                                                                                              \
    };

CUDA_OPS_INTEGER(uint8_t, uint32_t)
CUDA_OPS_INTEGER(uint16_t, uint32_t)
CUDA_OPS_INTEGER(uint32_t, uint32_t)
CUDA_OPS_INTEGER(uint64_t, uint64_t)

/* Two neighbouring elements, aligned to their size, so that one memory instruction moves both. */
template <typename T> struct alignas(2 * sizeof(T)) pair {
    T e[2];

    static __device__ __forceinline__ pair load(const T *from)
    {
        pair y;
        if (sizeof(T) == 2)
            *reinterpret_cast<uint32_t *>(&y) = *reinterpret_cast<const uint32_t *>(from);
        else
            *reinterpret_cast<uint2 *>(&y) = *reinterpret_cast<const uint2 *>(from);
        return y;
    }

    __device__ __forceinline__ void store(T *to) const
    {
        if (sizeof(T) == 2)
            *reinterpret_cast<uint32_t *>(to) = *reinterpret_cast<const uint32_t *>(this);
        else
            *reinterpret_cast<uint2 *>(to) = *reinterpret_cast<const uint2 *>(this);
    }
};

/* 16 bytes of T, which one memory instruction moves. */
template <typename T> union pack {
    static constexpr int WIDTH = 16 / sizeof(T);
    uint4 bits;
    T e[WIDTH];
    __device__ __forceinline__ pack() : bits(make_uint4(0, 0, 0, 0))
    {
    }
    explicit __device__ __forceinline__ pack(uint4 from) : bits(from)
    {
    }
};

#endif

// torch's numbers of 16 bits for kernels: as in torch's own headers, arithmetic is that of float, rounded, and every
// other use goes through a conversion to float. CUDA's __half has operators of its own, which take no int or float.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#define KOPS_OPERATORS(NAME, OP)                                                                                       \
    static __device__ __forceinline__ NAME operator OP(NAME a, NAME b)                                                 \
    {                                                                                                                  \
        return NAME((float)a OP(float) b);                                                                             \
    }                                                                                                                  \
    static __device__ __forceinline__ NAME &operator OP##=(NAME &a, const NAME &b)                                     \
    {                                                                                                                  \
        return a = NAME((float)a OP(float) b);                                                                         \
    }                                                                                                                  \
    static __device__ __forceinline__ float &operator OP##=(float &a, const NAME &b)                                   \
    {                                                                                                                  \
        return a = a OP(float) b;                                                                                      \
    }                                                                                                                  \
    KOPS_MIXED(NAME, OP, float, float)                                                                                 \
    KOPS_MIXED(NAME, OP, double, double)                                                                               \
    KOPS_MIXED(NAME, OP, int, NAME)                                                                                    \
    KOPS_MIXED(NAME, OP, long, NAME)                                                                                   \
    KOPS_MIXED(NAME, OP, long long, NAME)
#define KOPS_MIXED(NAME, OP, TYPE, RESULT)                                                                             \
    static __device__ __forceinline__ RESULT operator OP(NAME a, TYPE b)                                               \
    {                                                                                                                  \
        return (RESULT)a OP(RESULT) b;                                                                                 \
    }                                                                                                                  \
    static __device__ __forceinline__ RESULT operator OP(TYPE a, NAME b)                                               \
    {                                                                                                                  \
        return (RESULT)a OP(RESULT) b;                                                                                 \
    }
#define KOPS_COMPARISON(NAME, OP)                                                                                      \
    static __device__ __forceinline__ bool operator OP(NAME a, NAME b)                                                 \
    {                                                                                                                  \
        return (float)a OP(float) b;                                                                                   \
    }                                                                                                                  \
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>                                              \
    static __device__ __forceinline__ bool operator OP(NAME a, T b)                                                    \
    {                                                                                                                  \
        return (float)a OP b;                                                                                          \
    }                                                                                                                  \
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>                                              \
    static __device__ __forceinline__ bool operator OP(T a, NAME b)                                                    \
    {                                                                                                                  \
        return a OP(float) b;                                                                                          \
    }
#define KOPS_NUMBER(NAME, RAW, OF_FLOAT, TO_FLOAT, OF_BITS, TO_BITS)                                                   \
    struct alignas(2) NAME {                                                                                           \
        unsigned short x;                                                                                              \
        NAME() = default;                                                                                              \
        __device__ __forceinline__ NAME(float value) : x(TO_BITS(OF_FLOAT(value)))                                     \
        {                                                                                                              \
        }                                                                                                              \
        __device__ __forceinline__ NAME(const RAW &value) : x(TO_BITS(value))                                          \
        {                                                                                                              \
        }                                                                                                              \
        __device__ __forceinline__ operator float() const                                                              \
        {                                                                                                              \
            return TO_FLOAT(OF_BITS(x));                                                                               \
        }                                                                                                              \
        __device__ __forceinline__ operator RAW() const                                                                \
        {                                                                                                              \
            return OF_BITS(x);                                                                                         \
        }                                                                                                              \
    };                                                                                                                 \
    KOPS_OPERATORS(NAME, +)                                                                                            \
    KOPS_OPERATORS(NAME, -)                                                                                            \
    KOPS_OPERATORS(NAME, *)                                                                                            \
    KOPS_OPERATORS(NAME, /)                                                                                            \
    KOPS_COMPARISON(NAME, ==)                                                                                          \
    KOPS_COMPARISON(NAME, !=)                                                                                          \
    KOPS_COMPARISON(NAME, <)                                                                                           \
    KOPS_COMPARISON(NAME, >)                                                                                           \
    KOPS_COMPARISON(NAME, <=)                                                                                          \
    KOPS_COMPARISON(NAME, >=)                                                                                          \
    static __device__ __forceinline__ NAME operator-(NAME a)                                                           \
    {                                                                                                                  \
        return NAME(-(float)a);                                                                                        \
    }

namespace c10
{
KOPS_NUMBER(Half, __half, __float2half, __half2float, __ushort_as_half, __half_as_ushort)
KOPS_NUMBER(BFloat16, __nv_bfloat16, __float2bfloat16, __bfloat162float, __ushort_as_bfloat16, __bfloat16_as_ushort)
} // namespace c10
#undef KOPS_NUMBER
#undef KOPS_COMPARISON
#undef KOPS_MIXED
#undef KOPS_OPERATORS
namespace at
{
using c10::BFloat16;
using c10::Half;
} // namespace at
namespace torch
{
using c10::BFloat16;
using c10::Half;
} // namespace torch

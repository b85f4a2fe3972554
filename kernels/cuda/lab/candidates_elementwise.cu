/* Experiment 1: shapes of the vector kernel. The name says block size, packs a thread, and cache hints of loads and
 * stores (d: default, s: streaming; loads also n: past the first-level cache, p: so, and 256 bytes at a time into the
 * second). The tables of results are in README.md. */
#include "../ops/elementwise.cuh"

static constexpr cache_hint NO_L1 = (cache_hint)2, PREFETCH = (cache_hint)3;

template <> __device__ __forceinline__ uint4 load_bits<NO_L1>(const uint4 *from)
{
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

template <> __device__ __forceinline__ uint4 load_bits<PREFETCH>(const uint4 *from)
{
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

struct add {
    static constexpr int ARITY = 2;
    template <typename W> static __device__ __forceinline__ W apply(W a, W b)
    {
        return a + b;
    }
};

struct square {
    static constexpr int ARITY = 1;
    template <typename W> static __device__ __forceinline__ W apply(W a, W)
    {
        return a * a;
    }
};

#define CANDIDATE_OF(dtype, T, suffix, block, unroll, loads, stores)                                                   \
    extern "C" __global__ void __launch_bounds__(block)                                                                \
        lab_add_##dtype##_##suffix(const __grid_constant__ cuda_ops_vector p)                                          \
    {                                                                                                                  \
        vector_kernel<T, add, block, unroll, loads, stores>(p);                                                        \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(block)                                                                \
        lab_square_##dtype##_##suffix(const __grid_constant__ cuda_ops_vector p)                                       \
    {                                                                                                                  \
        vector_kernel<T, square, block, unroll, loads, stores>(p);                                                     \
    }

#define CANDIDATE(suffix, block, unroll, loads, stores)                                                                \
    CANDIDATE_OF(f32, float, suffix, block, unroll, loads, stores)                                                     \
    CANDIDATE_OF(f16, __half, suffix, block, unroll, loads, stores)

CANDIDATE(256_1_dd, 256, 1, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(128_1_dd, 128, 1, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(512_1_dd, 512, 1, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(1024_1_dd, 1024, 1, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(128_2_dd, 128, 2, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(256_2_dd, 256, 2, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(512_2_dd, 512, 2, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(256_4_dd, 256, 4, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(128_4_dd, 128, 4, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(256_1_ss, 256, 1, CACHE_STREAM, CACHE_STREAM)
CANDIDATE(256_1_ds, 256, 1, CACHE_DEFAULT, CACHE_STREAM)
CANDIDATE(256_1_sd, 256, 1, CACHE_STREAM, CACHE_DEFAULT)
CANDIDATE(256_2_ss, 256, 2, CACHE_STREAM, CACHE_STREAM)
CANDIDATE(256_2_ds, 256, 2, CACHE_DEFAULT, CACHE_STREAM)
CANDIDATE(512_1_ds, 512, 1, CACHE_DEFAULT, CACHE_STREAM)
CANDIDATE(128_4_ss, 128, 4, CACHE_STREAM, CACHE_STREAM)
CANDIDATE(256_1_nd, 256, 1, NO_L1, CACHE_DEFAULT)
CANDIDATE(256_1_ns, 256, 1, NO_L1, CACHE_STREAM)
CANDIDATE(256_1_pd, 256, 1, PREFETCH, CACHE_DEFAULT)
CANDIDATE(256_1_ps, 256, 1, PREFETCH, CACHE_STREAM)
CANDIDATE(256_2_ns, 256, 2, NO_L1, CACHE_STREAM)
CANDIDATE(512_1_ns, 512, 1, NO_L1, CACHE_STREAM)

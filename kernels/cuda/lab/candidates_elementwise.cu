/* Experiments 1: shapes of the vector kernel. The name says block size, packs a thread, and cache hints of loads and
 * stores (d: default, s: streaming). The tables of results are in README.md. */
#include "../ops/elementwise.cuh"

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

#define CANDIDATE(suffix, block, unroll, loads, stores)                                                                \
    extern "C" __global__ void __launch_bounds__(block)                                                                \
        lab_add_f32_##suffix(const __grid_constant__ cuda_ops_vector p)                                                \
    {                                                                                                                  \
        vector_kernel<float, add, block, unroll, loads, stores>(p);                                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(block)                                                                \
        lab_square_f32_##suffix(const __grid_constant__ cuda_ops_vector p)                                             \
    {                                                                                                                  \
        vector_kernel<float, square, block, unroll, loads, stores>(p);                                                 \
    }

CANDIDATE(256_1_dd, 256, 1, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(256_2_dd, 256, 2, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(256_8_dd, 256, 8, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(128_4_dd, 128, 4, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(512_4_dd, 512, 4, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(1024_2_dd, 1024, 2, CACHE_DEFAULT, CACHE_DEFAULT)
CANDIDATE(256_4_sd, 256, 4, CACHE_STREAM, CACHE_DEFAULT)
CANDIDATE(256_4_ds, 256, 4, CACHE_DEFAULT, CACHE_STREAM)
CANDIDATE(256_4_ss, 256, 4, CACHE_STREAM, CACHE_STREAM)
CANDIDATE(256_2_ss, 256, 2, CACHE_STREAM, CACHE_STREAM)
CANDIDATE(512_2_ss, 512, 2, CACHE_STREAM, CACHE_STREAM)

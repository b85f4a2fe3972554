// Names of device code that host code can contain: in types, in constants and in functions for both sides.
#pragma once
#include <kops/cuda.h>

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// CUDA has these in the global namespace on the host, too.
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
constexpr std::common_type_t<A, B> min(A a, B b)
{
    using T = std::common_type_t<A, B>;
    return (T)b < (T)a ? (T)b : (T)a;
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
constexpr std::common_type_t<A, B> max(A a, B b)
{
    using T = std::common_type_t<A, B>;
    return (T)a < (T)b ? (T)b : (T)a;
}

#define CUDART_INF_F        __builtin_inff()
#define CUDART_NAN_F        __builtin_nanf("")
#define CUDART_INF          __builtin_inf()
#define CUDART_NAN          __builtin_nan("")
#define CUDART_PI_F         3.141592654f
#define CUDART_PI           3.1415926535897931e+0
#define CUDART_L2E_F        1.442695041f
#define CUDART_LN2_F        0.693147181f
#define CUDART_SQRT_TWO_F   1.414213562f
#define CUDART_MAX_NORMAL_F 3.402823466e38f
#define CUDART_MIN_DENORM_F 1.401298464e-45f

template <class T> T __ldg(const T *pointer)
{
    return *pointer;
}
inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
inline float rsqrt(float x)
{
    return rsqrtf(x);
}
inline float __expf(float x)
{
    return expf(x);
}
inline float __logf(float x)
{
    return logf(x);
}
inline float __powf(float x, float y)
{
    return powf(x, y);
}
inline float __fdividef(float x, float y)
{
    return x / y;
}
inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
inline float __frsqrt_rn(float x)
{
    return rsqrtf(x);
}
inline float __saturatef(float x)
{
    return x > 1.0f ? 1.0f : x > 0.0f ? x : 0.0f;
}
#define KOPS_AS(NAME, FROM, TO)                                                                                        \
    inline TO NAME(FROM value)                                                                                         \
    {                                                                                                                  \
        TO bits;                                                                                                       \
        memcpy(&bits, &value, sizeof(bits));                                                                           \
        return bits;                                                                                                   \
    }
KOPS_AS(__float_as_int, float, int)
KOPS_AS(__int_as_float, int, float)
KOPS_AS(__float_as_uint, float, unsigned)
KOPS_AS(__uint_as_float, unsigned, float)
KOPS_AS(__double_as_longlong, double, long long)
KOPS_AS(__longlong_as_double, long long, double)
#undef KOPS_AS
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

namespace cooperative_groups
{
struct thread_block;
struct grid_group;
struct cluster_group;
struct coalesced_group;
template <unsigned, class = void> struct thread_block_tile;
} // namespace cooperative_groups

namespace nvcuda::wmma
{
struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
template <class Use, int m, int n, int k, class T, class Layout = void> class fragment;
namespace precision
{
struct tf32;
}
} // namespace nvcuda::wmma

namespace cub
{
enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
template <class T, int threads, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int = 1, int = 1>
class BlockReduce;
template <class T, int threads = 32> class WarpReduce;
struct Sum;
struct Max;
struct Min;
} // namespace cub

namespace cuda
{
enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };
template <thread_scope> class barrier;
template <thread_scope> class pipeline;
namespace std
{
using namespace ::std;
}
} // namespace cuda

// States of random numbers: arrays of them are allocated on the host.
struct curandStateXORWOW {
    unsigned d, v[5];
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
struct alignas(16) curandStatePhilox4_32_10 {
    uint4 ctr, output;
    uint2 key;
    unsigned STATE;
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
struct curandStateMRG32k3a {
    unsigned s1[3], s2[3];
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
typedef curandStateXORWOW curandState_t, curandState, curandStateXORWOW_t;
typedef curandStatePhilox4_32_10 curandStatePhilox4_32_10_t;
typedef curandStateMRG32k3a curandStateMRG32k3a_t;

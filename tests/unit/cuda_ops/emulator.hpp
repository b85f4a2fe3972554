/* The part of CUDA C++ that the kernels use, for a host compiler. Included once, before the .cu files. */
#ifndef KOPS_TESTS_CUDA_OPS_EMULATOR_HPP
#define KOPS_TESTS_CUDA_OPS_EMULATOR_HPP

#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

using std::isfinite;
using std::isinf;

#undef __shared__
#define __shared__ static
#undef __global__
#define __global__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __cluster_dims__
#define __cluster_dims__(...)
#undef __grid_constant__
#define __grid_constant__

struct emulated_place {
    unsigned x;
};
extern emulated_place emulated_thread, emulated_block, emulated_block_size, emulated_grid_size;

#define threadIdx emulated_thread
#define blockIdx  emulated_block
#define blockDim  emulated_block_size
#define gridDim   emulated_grid_size

/* Lets every thread of the block (of the warp) come here before any goes on. */
void emulated_block_barrier();
void emulated_warp_barrier();

#define __syncthreads emulated_block_barrier
#define __syncwarp    emulated_warp_barrier

template <typename T> static inline T __ldcs(const T *from)
{
    return *from;
}

template <typename T> static inline void __stcs(T *to, T value)
{
    *to = value;
}

static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift)
{
    return (uint32_t)(((uint64_t)high << 32 | low) >> (shift & 31));
}

static inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}

static inline uint64_t __umul64hi(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
}

static inline float __uint_as_float(uint32_t bits)
{
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

/* ---- clock.cuh ---- */

#define KOPS_CUDA_OPS_CLOCK_CUH

/* Ticks whenever it is read. */
static inline uint64_t gpu_clock()
{
    static uint64_t now;
    return ++now;
}

static inline bool arrive_last(uint32_t *count, uint32_t n)
{
    *count = *count >= n - 1 ? 0 : *count + 1;
    return *count == 0;
}

/* ---- quick.cuh ---- */

#define KOPS_CUDA_OPS_QUICK_CUH

static inline float quick_exp2(float x)
{
    return exp2f(x);
}

static inline float quick_reciprocal(float x)
{
    return 1 / x;
}

/* ---- cluster.cuh: kernels for clusters are not run here, and what they would call is only named ---- */

#define KOPS_CUDA_OPS_CLUSTER_CUH

uint32_t cluster_rank();
uint32_t shared_address(const void *);
void cluster_arrive();
void cluster_wait();
void cluster_send(const float *, uint32_t, float, uint32_t);
void cluster_send(const float *, uint32_t, float, float, uint32_t);
void barrier_init(uint32_t, uint32_t);
void barrier_init_done();
void barrier_expect(uint32_t, uint32_t);
void barrier_wait(uint32_t, uint32_t);

/* ---- async.cuh: a copy is there at once ---- */

#define KOPS_CUDA_OPS_ASYNC_CUH

template <int BYTES> static inline void copy_async(void *to, const void *from, int here)
{
    if (((uintptr_t)to | (uintptr_t)from) % BYTES != 0)
        __builtin_trap();
    std::memset(to, 0, BYTES);
    std::memcpy(to, from, (size_t)here);
}

static inline void copy_commit()
{
}

template <int> static inline void copy_wait()
{
}

/* ---- warp.cuh ---- */

#define KOPS_CUDA_OPS_WARP_CUH
#include "ops/dtypes.cuh"

/* What the lanes of each warp give each other by shuffles. */
extern float emulated_given[1024];

static inline float __shfl_xor_sync(unsigned, float value, int mask)
{
    emulated_given[threadIdx.x] = value;
    emulated_warp_barrier();
    const float taken = emulated_given[threadIdx.x ^ mask];
    emulated_warp_barrier();
    return taken;
}

struct gemm_fragment {
    uint32_t block[4];
};

/* What the lanes of each warp show each other. */
struct emulated_lane {
    const void *row;
    gemm_fragment a;
    uint32_t b[2];
    uint32_t tf32_a[4], tf32_b[2];
};
extern emulated_lane emulated_lanes[1024];

/* ldmatrix .x4: lane 8·q + r names row r of block q; a lane gets elements 2·(lane mod 4) and the next of row lane / 4
 * (of column, where transposed) of each block. */
template <bool TRANSPOSED> static inline gemm_fragment load_fragment(const void *row)
{
    const unsigned first = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;
    gemm_fragment f;

    emulated_lanes[threadIdx.x].row = row;
    emulated_warp_barrier();
    for (unsigned q = 0; q < 4; q++) {
        uint16_t pair[2];
        for (unsigned i = 0; i < 2; i++) {
            const unsigned r = lane / 4, c = lane % 4 * 2 + i;
            const unsigned in_row = TRANSPOSED ? c : r, at = TRANSPOSED ? r : c;
            pair[i] = static_cast<const uint16_t *>(emulated_lanes[first + q * 8 + in_row].row)[at];
        }
        std::memcpy(&f.block[q], pair, 4);
    }
    emulated_warp_barrier();
    return f;
}

template <typename T> static inline float emulated_element(uint32_t pair, unsigned i)
{
    const uint16_t bits = (uint16_t)(pair >> (16 * i));
    T x;
    std::memcpy(static_cast<void *>(&x), &bits, 2);
    return widen(x);
}

/* mma.m16n8k16: lane 4·g + t holds of a: rows g, g + 8, columns 2t, 2t + 1 and 8 more; of b: column g, rows 2t, 2t + 1
 * and 8 more; of the sum: rows g, g + 8, columns 2t, 2t + 1. */
template <typename T>
static inline void multiply_add(float (&sum)[4], const gemm_fragment &a, uint32_t b_low, uint32_t b_high, T)
{
    const unsigned first = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;

    emulated_lanes[threadIdx.x].a = a;
    emulated_lanes[threadIdx.x].b[0] = b_low;
    emulated_lanes[threadIdx.x].b[1] = b_high;
    emulated_warp_barrier();
    for (unsigned s = 0; s < 4; s++) {
        const unsigned row = lane / 4, column = lane % 4 * 2 + s % 2, lower = s / 2;
        for (unsigned k = 0; k < 16; k++) {
            const emulated_lane &of_a = emulated_lanes[first + row * 4 + k % 8 / 2];
            const emulated_lane &of_b = emulated_lanes[first + column * 4 + k % 8 / 2];
            sum[s] +=
                emulated_element<T>(of_a.a.block[lower + k / 8 * 2], k % 2) * emulated_element<T>(of_b.b[k / 8], k % 2);
        }
    }
    emulated_warp_barrier();
}

static inline uint32_t to_tf32(float x)
{
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return isfinite(x) ? (bits + 0x1000) & ~(uint32_t)0x1fff : bits;
}

/* mma.m16n8k8: who holds what is said in warp.cuh. */
static inline void multiply_add_tf32(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    const unsigned first = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;

    std::memcpy(emulated_lanes[threadIdx.x].tf32_a, a, sizeof(a));
    std::memcpy(emulated_lanes[threadIdx.x].tf32_b, b, sizeof(b));
    emulated_warp_barrier();
    for (unsigned s = 0; s < 4; s++) {
        const unsigned row = lane / 4, column = lane % 4 * 2 + s % 2, lower = s / 2;
        for (unsigned k = 0; k < 8; k++)
            sum[s] += __uint_as_float(emulated_lanes[first + row * 4 + k % 4].tf32_a[lower + k / 4 * 2]) *
                      __uint_as_float(emulated_lanes[first + column * 4 + k % 4].tf32_b[k / 4]);
    }
    emulated_warp_barrier();
}

/* ---- kernels by name, whatever their parameters ---- */

struct emulated_kernel {
    const char *name;
    size_t params_size;
    void (*call)(void (*kernel)(), const void *params);
    void (*kernel)();
};

template <typename Params> static void emulated_call(void (*kernel)(), const void *params)
{
    reinterpret_cast<void (*)(Params)>(kernel)(*static_cast<const Params *>(params));
}

template <typename Params> static emulated_kernel emulated_entry(const char *name, void (*kernel)(Params))
{
    return {name, sizeof(Params), emulated_call<Params>, reinterpret_cast<void (*)()>(kernel)};
}

extern const emulated_kernel emulated_sm80[], emulated_sm75[];

#endif

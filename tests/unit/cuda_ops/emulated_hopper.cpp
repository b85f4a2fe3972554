/* What the kernels of sm_90a do with their sums: the rest of them is instructions that are not emulated, and of which
 * only what the templates name is declared here. */
#include "emulator.hpp"

#define KOPS_CUDA_OPS_HOPPER_CUH
#define KOPS_CUDA_OPS_WGMMA_CUH
#include "ops/params.h"

enum { PANEL_STEPS = 64, PANEL_PIECE_BYTES = 64 * 128 };
void named_barrier(int, int);
void named_barrier_arrive(int, int);
void map_prefetch(const cuda_ops_map &);
void map_load(uint32_t, const cuda_ops_map &, int, int, int, uint32_t, uint16_t = 0);
void map_store(const cuda_ops_map &, uint32_t, int, int, int);
void store_prepare();
void store_commit();
void store_wait();
void store_blocks(uint32_t, uint32_t, uint32_t, uint32_t, uint32_t);
void wgmma_begin();
void wgmma_commit();
int __shfl_sync(unsigned, int, int);
template <int> uint64_t panel_descriptor(uint32_t);
template <int> constexpr uint64_t panel_advance = 0;
template <int> void store_wait_read();
template <int> void registers_give();
template <int> void registers_take();
template <int> void wgmma_wait();
template <int, int, int N, typename T> void wgmma(float (&)[N], uint64_t, uint64_t, int, T);
template <int N> void wgmma_settle(float (&)[N]);

#include "ops/gemm_hopper.cuh"

#include "emulator.h"

template <typename T> static void finish(const cuda_ops_gemm_mapped *p, const hopper_tile &t, int consumer, float *sums)
{
    using kernel = gemm_hopper<T, 0, 0, 128, 256, 4, 2, 1, 1, true>;
    float sum[kernel::PARTS][128];

    static_assert(sizeof(sum) == EMULATED_HOPPER_SUMS * sizeof(float), "as the test has them");
    std::memcpy(sum, sums, sizeof(sum));
    kernel{*p, 0, 0, 0, 0}.finish_linear(sum, t, consumer);
    std::memcpy(sums, sum, sizeof(sum));
}

void emulate_hopper_finish(const void *params, int bf16, const int place[3], unsigned consumer, unsigned thread,
                           float *sums)
{
    const cuda_ops_gemm_mapped *p = static_cast<const cuda_ops_gemm_mapped *>(params);
    const hopper_tile t = {place[0], place[1], place[2]};

    emulated_thread.x = HOPPER_GROUP * (1 + consumer) + thread;
    if (bf16)
        finish<__nv_bfloat16>(p, t, (int)consumer, sums);
    else
        finish<__half>(p, t, (int)consumer, sums);
}

/* The kernels that sm_75 compiles differently: bf16 without tensor cores. */
#include "emulator.hpp"

#define __CUDA_ARCH__                    750
#define kops_gemm_bf16_tiled_large       sm75_large
#define kops_gemm_bf16_tiled_large_any   sm75_large_any
#define kops_gemm_bf16_tiled_small       sm75_small
#define kops_gemm_bf16_tiled_small_any   sm75_small_any
#define kops_linear_bf16_tiled_large     sm75_linear_large
#define kops_linear_bf16_tiled_large_any sm75_linear_large_any
#define kops_linear_bf16_tiled_small     sm75_linear_small
#define kops_linear_bf16_tiled_small_any sm75_linear_small_any
#include "ops/gemm_bf16.cu"

const emulated_kernel emulated_sm75[] = {
    emulated_entry("kops_gemm_bf16_tiled_large", sm75_large),
    emulated_entry("kops_gemm_bf16_tiled_large_any", sm75_large_any),
    emulated_entry("kops_gemm_bf16_tiled_small", sm75_small),
    emulated_entry("kops_gemm_bf16_tiled_small_any", sm75_small_any),
    emulated_entry("kops_linear_bf16_tiled_large", sm75_linear_large),
    emulated_entry("kops_linear_bf16_tiled_large_any", sm75_linear_large_any),
    emulated_entry("kops_linear_bf16_tiled_small", sm75_linear_small),
    emulated_entry("kops_linear_bf16_tiled_small_any", sm75_linear_small_any),
    {nullptr, 0, nullptr, nullptr},
};

/* gemm for few rows, and for small matrices. Clusters need sm_90, mma.sync of bf16 and tf32 sm_80. */
#include "gemm_mma.cuh"
#include "gemm_skinny.cuh"
#include "gemm_small.cuh"
#include "gemm_small_mma.cuh"

CUDA_OPS_SKINNY(gemm, false, f32_skinny_along, skinny_f32<true>)
CUDA_OPS_SKINNY(gemm, false, f32_skinny_across, skinny_f32<false>)
CUDA_OPS_GEMM_SMALL(f32_small)

#if __CUDA_ARCH__ >= 800
CUDA_OPS_SKINNY(gemm, false, f16_skinny_along, skinny_mma<__half, true>)
CUDA_OPS_SKINNY(gemm, false, f16_skinny_across, skinny_mma<__half, false>)
CUDA_OPS_SKINNY(gemm, false, bf16_skinny_along, skinny_mma<__nv_bfloat16, true>)
CUDA_OPS_SKINNY(gemm, false, bf16_skinny_across, skinny_mma<__nv_bfloat16, false>)
CUDA_OPS_GEMM_SMALL_MMA(tf32_small)
#endif

#if __CUDA_ARCH__ >= 900
#define SPLIT(n)                                                                                                       \
    CUDA_OPS_SKINNY_SPLIT(gemm, false, f32_skinny_along, n, skinny_f32<true>)                                          \
    CUDA_OPS_SKINNY_SPLIT(gemm, false, f32_skinny_across, n, skinny_f32<false>)                                        \
    CUDA_OPS_SKINNY_SPLIT(gemm, false, f16_skinny_along, n, skinny_mma<__half, true>)                                  \
    CUDA_OPS_SKINNY_SPLIT(gemm, false, f16_skinny_across, n, skinny_mma<__half, false>)                                \
    CUDA_OPS_SKINNY_SPLIT(gemm, false, bf16_skinny_along, n, skinny_mma<__nv_bfloat16, true>)                          \
    CUDA_OPS_SKINNY_SPLIT(gemm, false, bf16_skinny_across, n, skinny_mma<__nv_bfloat16, false>)                        \
    CUDA_OPS_GEMM_SMALL_SPLIT(f32_small, n)                                                                            \
    CUDA_OPS_GEMM_SMALL_MMA_SPLIT(tf32_small, n)
SPLIT(2)
SPLIT(4)
SPLIT(8)
#endif

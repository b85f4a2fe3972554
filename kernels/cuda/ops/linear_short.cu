/* gemm with a bias and an activation for few rows. Clusters need sm_90, mma.sync of bf16 sm_80. */
#include "gemm_mma.cuh"
#include "gemm_skinny.cuh"

CUDA_OPS_SKINNY(linear, true, f32_skinny_along, skinny_f32<true>)
CUDA_OPS_SKINNY(linear, true, f32_skinny_across, skinny_f32<false>)

#if __CUDA_ARCH__ >= 800
CUDA_OPS_SKINNY(linear, true, f16_skinny_along, skinny_mma<__half, true>)
CUDA_OPS_SKINNY(linear, true, f16_skinny_across, skinny_mma<__half, false>)
CUDA_OPS_SKINNY(linear, true, bf16_skinny_along, skinny_mma<__nv_bfloat16, true>)
CUDA_OPS_SKINNY(linear, true, bf16_skinny_across, skinny_mma<__nv_bfloat16, false>)
#endif

#if __CUDA_ARCH__ >= 900
#define LINEAR_SPLIT(n)                                                                                                \
    CUDA_OPS_SKINNY_SPLIT(linear, true, f32_skinny_along, n, skinny_f32<true>)                                         \
    CUDA_OPS_SKINNY_SPLIT(linear, true, f32_skinny_across, n, skinny_f32<false>)                                       \
    CUDA_OPS_SKINNY_SPLIT(linear, true, f16_skinny_along, n, skinny_mma<__half, true>)                                 \
    CUDA_OPS_SKINNY_SPLIT(linear, true, f16_skinny_across, n, skinny_mma<__half, false>)                               \
    CUDA_OPS_SKINNY_SPLIT(linear, true, bf16_skinny_along, n, skinny_mma<__nv_bfloat16, true>)                         \
    CUDA_OPS_SKINNY_SPLIT(linear, true, bf16_skinny_across, n, skinny_mma<__nv_bfloat16, false>)
LINEAR_SPLIT(2)
LINEAR_SPLIT(4)
LINEAR_SPLIT(8)
#endif

/* gemm in bf16, sums in f32. Tensor cores have bf16 since sm_80; older devices compute in f32 arithmetic. */
#include "gemm_mma.cuh"
#include "gemm_simt.cuh"

#if __CUDA_ARCH__ >= 800
CUDA_OPS_GEMM_MMA(bf16_tiled_large, 2, __nv_bfloat16, 128, 128, 32, 64, 32)
CUDA_OPS_GEMM_MMA(bf16_tiled_small, 2, __nv_bfloat16, 64, 64, 32, 32, 16)
#else
CUDA_OPS_GEMM_SIMT(bf16_tiled_large, 2, __nv_bfloat16, 128, 128, 16, 8, 8)
CUDA_OPS_GEMM_SIMT(bf16_tiled_small, 2, __nv_bfloat16, 64, 64, 32, 4, 4)
#endif

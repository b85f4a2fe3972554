/* gemm in f16, sums in f32. */
#include "gemm_mma.cuh"

CUDA_OPS_GEMM_MMA(f16_tiled_large, 2, __half, 128, 128, 32, 64, 32)
CUDA_OPS_GEMM_MMA(f16_tiled_small, 2, __half, 64, 64, 32, 32, 16)

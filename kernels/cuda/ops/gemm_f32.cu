/* gemm in f32. */
#include "gemm_simt.cuh"

CUDA_OPS_GEMM_SIMT(f32_tiled_large, 2, float, 128, 128, 16, 8, 8)
CUDA_OPS_GEMM_SIMT(f32_tiled_small, 2, float, 64, 64, 16, 4, 4)

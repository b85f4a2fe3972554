/* gemm of 8-bit floats with scales, sums in f32. */
#include "gemm_scaled.cuh"

CUDA_OPS_GEMM_SCALED(f8_tiled_large, 2, 128, 128, 32, 64, 32)
CUDA_OPS_GEMM_SCALED(f8_tiled_small, 2, 64, 64, 64, 32, 16)

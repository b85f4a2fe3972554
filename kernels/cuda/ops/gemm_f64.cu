/* gemm in f64. */
#include "gemm_simt.cuh"

CUDA_OPS_GEMM_SIMT(f64_tiled_large, 1, double, 128, 64, 8, 8, 4)
CUDA_OPS_GEMM_SIMT(f64_tiled_small, 2, double, 64, 64, 8, 4, 4)

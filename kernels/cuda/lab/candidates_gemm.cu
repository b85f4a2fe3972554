/* Experiments 2: tiles of the gemm kernels. The name says rows, columns and depth of a tile, the part of a thread
 * (simt) or of a warp (mma), and the blocks a multiprocessor that registers are limited for. Results are in README.md.
 */
#include "../ops/gemm_mma.cuh"
#include "../ops/gemm_simt.cuh"

#define SIMT(dtype, T, m, n, k, tm, tn, blocks)                                                                        \
    CUDA_OPS_GEMM(lab_##dtype##_##m##x##n##x##k##_##tm##x##tn##_##blocks, blocks, true, gemm_simt<T, m, n, k, tm, tn>)
#define MMA(dtype, T, m, n, k, wm, wn, blocks)                                                                         \
    CUDA_OPS_GEMM(lab_##dtype##_##m##x##n##x##k##_##wm##x##wn##_##blocks, blocks, true, gemm_mma<T, m, n, k, wm, wn>)

SIMT(f32, float, 128, 128, 8, 8, 8, 2)
SIMT(f32, float, 128, 128, 16, 8, 8, 1)
SIMT(f32, float, 256, 128, 8, 16, 8, 1)
SIMT(f32, float, 128, 256, 8, 8, 16, 1)
SIMT(f32, float, 128, 64, 16, 8, 4, 2)
SIMT(f32, float, 128, 64, 16, 8, 4, 3)
SIMT(f64, double, 128, 128, 8, 8, 8, 1)
SIMT(f64, double, 64, 64, 16, 4, 4, 2)
MMA(f16, __half, 128, 128, 32, 64, 32, 1)
MMA(f16, __half, 128, 256, 16, 64, 64, 1)
MMA(f16, __half, 128, 64, 32, 32, 32, 2)

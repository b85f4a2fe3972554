/* gemm of f16 and bf16 with a bias and an activation on sm_90a. Names are as in gemm_hopper.cu. */
#include "gemm_hopper.cuh"

#define HOPPER_OF(dtype, T, tile, ways, a, b, ...)                                                                     \
    CUDA_OPS_LINEAR_HOPPER(dtype##_hopper_##tile##_##ways, 2, T, a, b, __VA_ARGS__)
#define HOPPER(dtype, T, tile, ...)                                                                                    \
    HOPPER_OF(dtype, T, tile, kk, 0, 0, __VA_ARGS__)                                                                   \
    HOPPER_OF(dtype, T, tile, kx, 0, 1, __VA_ARGS__)                                                                   \
    HOPPER_OF(dtype, T, tile, xk, 1, 0, __VA_ARGS__)                                                                   \
    HOPPER_OF(dtype, T, tile, xx, 1, 1, __VA_ARGS__)

/* Tile, stages of the ring and cluster are as in gemm_hopper.cu. The first consumer leads by one panel, since the
 * epilogue takes longer between a tile's last product and the next tile's first. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
HOPPER(f16, __half, 128x256, 128, 256, 4, 2, 1, 1)
HOPPER(f16, __half, 128x128, 128, 128, 6, 2, 1, 1)
HOPPER(bf16, __nv_bfloat16, 128x256, 128, 256, 4, 2, 1, 1)
HOPPER(bf16, __nv_bfloat16, 128x128, 128, 128, 6, 2, 1, 1)
#endif

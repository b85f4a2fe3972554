/* Steps 4 to 7 of the ladder: one kernel, its parts added one after the other, and shapes of tiles and clusters beside
 * each other. The name says dtype, how a and b lie (k: along k, x: across), tile, stages of the ring, cluster, lead. */
#include "../ops/gemm_hopper.cuh"

#define LADDER(name, T, a, b, m, n, stages, cm, cn, lead)                                                              \
    CUDA_OPS_GEMM_HOPPER(name, cm *cn, T, a, b, m, n, stages, cm, cn, lead)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
LADDER(bf16_kx_128x128_s2_c11_l0, __nv_bfloat16, 0, 1, 128, 128, 2, 1, 1, 0)
LADDER(bf16_kx_128x256_s4_c11_l0, __nv_bfloat16, 0, 1, 128, 256, 4, 1, 1, 0)
LADDER(bf16_kx_128x256_s4_c21_l0, __nv_bfloat16, 0, 1, 128, 256, 4, 2, 1, 0)
LADDER(bf16_kx_128x256_s4_c21_l1, __nv_bfloat16, 0, 1, 128, 256, 4, 2, 1, 1)
LADDER(bf16_kx_128x256_s4_c21_l2, __nv_bfloat16, 0, 1, 128, 256, 4, 2, 1, 2)
LADDER(bf16_kx_128x256_s4_c21_l3, __nv_bfloat16, 0, 1, 128, 256, 4, 2, 1, 3)
LADDER(bf16_kx_128x256_s4_c12_l0, __nv_bfloat16, 0, 1, 128, 256, 4, 1, 2, 0)
LADDER(bf16_kx_128x256_s3_c21_l0, __nv_bfloat16, 0, 1, 128, 256, 3, 2, 1, 0)
LADDER(bf16_kx_256x128_s4_c12_l0, __nv_bfloat16, 0, 1, 256, 128, 4, 1, 2, 0)
LADDER(bf16_kx_256x128_s4_c21_l0, __nv_bfloat16, 0, 1, 256, 128, 4, 2, 1, 0)
LADDER(bf16_kx_128x128_s6_c11_l0, __nv_bfloat16, 0, 1, 128, 128, 6, 1, 1, 0)
LADDER(bf16_kx_128x128_s6_c21_l0, __nv_bfloat16, 0, 1, 128, 128, 6, 2, 1, 0)
LADDER(bf16_kx_128x64_s6_c11_l0, __nv_bfloat16, 0, 1, 128, 64, 6, 1, 1, 0)
LADDER(bf16_kk_128x256_s4_c21_l0, __nv_bfloat16, 0, 0, 128, 256, 4, 2, 1, 0)
LADDER(bf16_xk_128x256_s4_c21_l0, __nv_bfloat16, 1, 0, 128, 256, 4, 2, 1, 0)
LADDER(bf16_xx_128x256_s4_c21_l0, __nv_bfloat16, 1, 1, 128, 256, 4, 2, 1, 0)
LADDER(bf16_kk_128x128_s6_c11_l0, __nv_bfloat16, 0, 0, 128, 128, 6, 1, 1, 0)
LADDER(bf16_kk_256x128_s4_c12_l0, __nv_bfloat16, 0, 0, 256, 128, 4, 1, 2, 0)
LADDER(f16_kx_128x256_s4_c21_l0, __half, 0, 1, 128, 256, 4, 2, 1, 0)
LADDER(f16_kk_128x256_s4_c21_l0, __half, 0, 0, 128, 256, 4, 2, 1, 0)
LADDER(bf16_kk_128x256_s4_c21_l1, __nv_bfloat16, 0, 0, 128, 256, 4, 2, 1, 1)
LADDER(bf16_kx_128x128_s6_c21_l1, __nv_bfloat16, 0, 1, 128, 128, 6, 2, 1, 1)
LADDER(bf16_kx_256x128_s4_c12_l1, __nv_bfloat16, 0, 1, 256, 128, 4, 1, 2, 1)
LADDER(f16_kx_128x256_s4_c21_l1, __half, 0, 1, 128, 256, 4, 2, 1, 1)
#endif

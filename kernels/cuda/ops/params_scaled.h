/* The parameters of the kernels kops_scaled_gemm_f8_tiled_<config>, see params.h: the suffix never changes the result.
 */
#ifndef KOPS_CUDA_OPS_PARAMS_SCALED_H
#define KOPS_CUDA_OPS_PARAMS_SCALED_H

#include "params.h"

/* Formats of f8, and types of out. */
enum cuda_ops_format { CUDA_OPS_E4M3, CUDA_OPS_E5M2 };
enum cuda_ops_out { CUDA_OPS_OUT_F32, CUDA_OPS_OUT_F16, CUDA_OPS_OUT_BF16 };

/* out[c, i, j] = Σ_l a[c, i, l] · b[c, l, j] · scale_a[c, i, j] · scale_b[c, i, j]. a's and b's elements are f8, the
 * scales and the sum f32; the scaled sum is rounded to out's type. */
struct cuda_ops_gemm_scaled {
    struct cuda_ops_gemm gemm;               /* alpha is 1, beta 0; no bias */
    struct cuda_ops_matrix scale_a, scale_b; /* scale_a.column and scale_b.row are 0 */
    uint32_t a_format, b_format;             /* enum cuda_ops_format */
    uint32_t out_type;                       /* enum cuda_ops_out */
    uint32_t reserved;
};

#endif

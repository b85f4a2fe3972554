/* Lists of the embedded binaries and their kernels, from which come the symbol table, the build's list of .cu files and
 * the lab's check. */
#ifndef KOPS_CUDA_OPS_KERNEL_LIST_H
#define KOPS_CUDA_OPS_KERNEL_LIST_H

#include "proto/generated/op_ids.h"

#define CUDA_OPS_BINARY_OF_OP(X, NAME, op, inputs, dtypes) X(op)

/* X(name): <name>.cu, embedded as <name>.fatbin, in the order of cuda_ops_binaries. */
#define CUDA_OPS_BINARIES(X)                                                                                           \
    OP_ARITHMETIC(CUDA_OPS_BINARY_OF_OP, X)                                                                            \
    X(stamp)                                                                                                           \
    X(copy)                                                                                                            \
    X(move)                                                                                                            \
    X(repack)                                                                                                          \
    X(gemm_f32)                                                                                                        \
    X(gemm_f64)                                                                                                        \
    X(gemm_f16)                                                                                                        \
    X(gemm_bf16)                                                                                                       \
    X(gemm_f8)                                                                                                         \
    X(gemm_short)                                                                                                      \
    X(gemm_hopper)                                                                                                     \
    X(linear_short)                                                                                                    \
    X(linear_hopper)                                                                                                   \
    X(gelu)

#define CUDA_OPS_OF_DTYPE(X, binary, op, dtype)                                                                        \
    X(binary, kops_##op##_##dtype##_plain)                                                                             \
    X(binary, kops_##op##_##dtype##_vector)                                                                            \
    X(binary, kops_##op##_##dtype##_rows)                                                                              \
    X(binary, kops_##op##_##dtype##_tiles)                                                                             \
    X(binary, kops_##op##_##dtype##_strided)                                                                           \
    X(binary, kops_##op##_##dtype##_strided64)

#define CUDA_OPS_OF_FLOATS(X, op)                                                                                      \
    CUDA_OPS_OF_DTYPE(X, op, op, f32)                                                                                  \
    CUDA_OPS_OF_DTYPE(X, op, op, f64)                                                                                  \
    CUDA_OPS_OF_DTYPE(X, op, op, f16)                                                                                  \
    CUDA_OPS_OF_DTYPE(X, op, op, bf16)

/* Signed integers use the kernels of unsigned ones. */
#define CUDA_OPS_OF_NUMBERS(X, op)                                                                                     \
    CUDA_OPS_OF_FLOATS(X, op)                                                                                          \
    CUDA_OPS_OF_DTYPE(X, op, op, u8)                                                                                   \
    CUDA_OPS_OF_DTYPE(X, op, op, u16)                                                                                  \
    CUDA_OPS_OF_DTYPE(X, op, op, u32)                                                                                  \
    CUDA_OPS_OF_DTYPE(X, op, op, u64)

#define CUDA_OPS_OF_OP(X, NAME, op, inputs, dtypes) CUDA_OPS_OF_##dtypes(X, op)

#define CUDA_OPS_OF_GEMM(X, dtype)                                                                                     \
    X(gemm_##dtype, kops_gemm_##dtype##_tiled_large)                                                                   \
    X(gemm_##dtype, kops_gemm_##dtype##_tiled_large_any)                                                               \
    X(gemm_##dtype, kops_gemm_##dtype##_tiled_small)                                                                   \
    X(gemm_##dtype, kops_gemm_##dtype##_tiled_small_any)                                                               \
    X(gemm_##dtype, kops_linear_##dtype##_tiled_large)                                                                 \
    X(gemm_##dtype, kops_linear_##dtype##_tiled_large_any)                                                             \
    X(gemm_##dtype, kops_linear_##dtype##_tiled_small)                                                                 \
    X(gemm_##dtype, kops_linear_##dtype##_tiled_small_any)

#define CUDA_OPS_OF_SKINNY(X, dtype, split)                                                                            \
    X(gemm_short, kops_gemm_##dtype##_skinny_along_##split)                                                            \
    X(gemm_short, kops_gemm_##dtype##_skinny_across_##split)                                                           \
    X(linear_short, kops_linear_##dtype##_skinny_along_##split)                                                        \
    X(linear_short, kops_linear_##dtype##_skinny_across_##split)

#define CUDA_OPS_OF_SMALL_MMA(X, split)                                                                                \
    X(gemm_short, kops_gemm_tf32_small_##split)                                                                        \
    X(gemm_short, kops_gemm_tf32_small_##split##_any)

#define CUDA_OPS_OF_SPLIT(X, split)                                                                                    \
    CUDA_OPS_OF_SKINNY(X, f32, split)                                                                                  \
    CUDA_OPS_OF_SKINNY(X, f16, split)                                                                                  \
    CUDA_OPS_OF_SKINNY(X, bf16, split)                                                                                 \
    X(gemm_short, kops_gemm_f32_small_##split)                                                                         \
    X(gemm_short, kops_gemm_f32_small_##split##_any)                                                                   \
    CUDA_OPS_OF_SMALL_MMA(X, split)

#define CUDA_OPS_OF_HOPPER_WAYS(X, op, dtype, tile)                                                                    \
    X(op##_hopper, kops_##op##_##dtype##_hopper_##tile##_kk)                                                           \
    X(op##_hopper, kops_##op##_##dtype##_hopper_##tile##_kx)                                                           \
    X(op##_hopper, kops_##op##_##dtype##_hopper_##tile##_xk)                                                           \
    X(op##_hopper, kops_##op##_##dtype##_hopper_##tile##_xx)

#define CUDA_OPS_OF_HOPPER(X, dtype, tile)                                                                             \
    CUDA_OPS_OF_HOPPER_WAYS(X, gemm, dtype, tile)                                                                      \
    CUDA_OPS_OF_HOPPER_WAYS(X, linear, dtype, tile)

/* X(binary, symbol): kernels that every architecture has. */
#define CUDA_OPS_KERNELS(X)                                                                                            \
    OP_ARITHMETIC(CUDA_OPS_OF_OP, X)                                                                                   \
    X(stamp, kops_gate)                                                                                                \
    X(move, kops_move)                                                                                                 \
    CUDA_OPS_OF_DTYPE(X, copy, copy, 1)                                                                                \
    CUDA_OPS_OF_DTYPE(X, copy, copy, 2)                                                                                \
    CUDA_OPS_OF_DTYPE(X, copy, copy, 4)                                                                                \
    CUDA_OPS_OF_DTYPE(X, copy, copy, 8)                                                                                \
    CUDA_OPS_OF_DTYPE(X, gelu, gelu, f32)                                                                              \
    CUDA_OPS_OF_DTYPE(X, gelu, gelu, f64)                                                                              \
    X(repack, kops_repack_2)                                                                                           \
    X(repack, kops_repack_4)                                                                                           \
    X(repack, kops_repack_8)                                                                                           \
    X(repack, kops_repack_bf16x2)                                                                                      \
    X(repack, kops_repack_bf16x3)                                                                                      \
    CUDA_OPS_OF_GEMM(X, f32)                                                                                           \
    CUDA_OPS_OF_GEMM(X, f64)                                                                                           \
    CUDA_OPS_OF_GEMM(X, f16)                                                                                           \
    CUDA_OPS_OF_GEMM(X, bf16)                                                                                          \
    X(gemm_f8, kops_scaled_gemm_f8_tiled_large)                                                                        \
    X(gemm_f8, kops_scaled_gemm_f8_tiled_large_any)                                                                    \
    X(gemm_f8, kops_scaled_gemm_f8_tiled_small)                                                                        \
    X(gemm_f8, kops_scaled_gemm_f8_tiled_small_any)                                                                    \
    CUDA_OPS_OF_SKINNY(X, f32, 1)                                                                                      \
    X(gemm_short, kops_gemm_f32_small_1)                                                                               \
    X(gemm_short, kops_gemm_f32_small_1_any)

/* X(binary, symbol): kernels since sm_80; then kernels since sm_90; then kernels of sm_90a alone. */
#define CUDA_OPS_KERNELS_SM80(X)                                                                                       \
    CUDA_OPS_OF_SKINNY(X, f16, 1)                                                                                      \
    CUDA_OPS_OF_SKINNY(X, bf16, 1)                                                                                     \
    CUDA_OPS_OF_SMALL_MMA(X, 1)

#define CUDA_OPS_KERNELS_SM90(X)                                                                                       \
    CUDA_OPS_OF_SPLIT(X, 2)                                                                                            \
    CUDA_OPS_OF_SPLIT(X, 4)                                                                                            \
    CUDA_OPS_OF_SPLIT(X, 8)

#define CUDA_OPS_KERNELS_SM90A(X)                                                                                      \
    CUDA_OPS_OF_HOPPER(X, f16, 128x256)                                                                                \
    CUDA_OPS_OF_HOPPER(X, f16, 128x128)                                                                                \
    CUDA_OPS_OF_HOPPER(X, bf16, 128x256)                                                                               \
    CUDA_OPS_OF_HOPPER(X, bf16, 128x128)

#endif

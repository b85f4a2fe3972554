/* Kernels that copy matrices for gemm. */
#include "repack.cuh"

CUDA_OPS_REPACK(2, repack_copy<uint16_t>)
CUDA_OPS_REPACK(4, repack_copy<uint32_t>)
CUDA_OPS_REPACK(8, repack_copy<uint64_t>)
CUDA_OPS_REPACK(bf16x2, repack_split<2>)
CUDA_OPS_REPACK(bf16x3, repack_split<3>)

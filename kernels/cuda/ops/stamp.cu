/* The words in which the blocks of stamped kernels count: one a stream, each in a sector of memory of its own. */
#include "params.h"

extern "C" {
__device__ uint32_t kops_stamp_counts[CUDA_OPS_COUNTS * CUDA_OPS_COUNT_BYTES / sizeof(uint32_t)];
}

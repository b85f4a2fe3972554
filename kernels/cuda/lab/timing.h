/* The lab's timed experiments; each prints a table. `buffers` are three tensors of BUFFER_BYTES each, filled. Return 0,
 * or -1 after a line on stderr. */
#ifndef KOPS_CUDA_LAB_TIMING_H
#define KOPS_CUDA_LAB_TIMING_H

#include "gpu.h"

#define BUFFER_BYTES ((size_t)1 << 30)

int time_elementwise(struct lab_gpu *gpu, const uint64_t buffers[3]);
int time_strided(struct lab_gpu *gpu, const uint64_t buffers[3]);
int time_gemm(struct lab_gpu *gpu, const uint64_t buffers[3]);

/* More elements than 2^31, compared one by one. */
int check_large(struct lab_gpu *gpu);

#endif

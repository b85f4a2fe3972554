/* Words in which blocks of stamped kernels count, one for each stream, in its own memory sector; the gate's kernel. */
#include "params.h"
#include "stamp.cuh"

extern "C" {

__device__ uint32_t kops_stamp_counts[CUDA_OPS_COUNTS * CUDA_OPS_COUNT_BYTES / sizeof(uint32_t)];

/* Waits in one thread for the host's word, for a bounded time, so that a stopped host does not block the GPU. */
__global__ void kops_gate(const cuda_ops_gate p)
{
    const volatile uint64_t *go = reinterpret_cast<const volatile uint64_t *>(p.go);
    const uint64_t begin = gpu_clock();

    stamp_start(p.stamps);
    while (*go < p.value && gpu_clock() - begin < p.most_ns)
        ;
    stamp_end(p.stamps);
}
}

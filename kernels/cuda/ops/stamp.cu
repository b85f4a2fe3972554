/* The words in which the blocks of stamped kernels count, one a stream, each in a sector of memory of its own; and the
 * kernel that is a stream's gate. */
#include "params.h"
#include "stamp.cuh"

extern "C" {

__device__ uint32_t kops_stamp_counts[CUDA_OPS_COUNTS * CUDA_OPS_COUNT_BYTES / sizeof(uint32_t)];

/* One thread. It waits for the host's word, but never for long: a host that cannot go on does not hold the GPU up. */
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

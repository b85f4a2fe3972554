/* A kernel's own times: when its first block began and its last block ended. No event is on the stream for them. */
#ifndef KOPS_CUDA_OPS_STAMP_CUH
#define KOPS_CUDA_OPS_STAMP_CUH

#include "clock.cuh"
#include "params.h"

/* At the beginning of the kernel. Block 0 is the first that the GPU starts. */
__device__ __forceinline__ void stamp_start(const cuda_ops_stamps &s)
{
    if (s.times && blockIdx.x == 0 && threadIdx.x == 0)
        reinterpret_cast<volatile uint64_t *>(s.times)[0] = gpu_clock();
}

/* At the end of the kernel, by all threads of the block. The blocks that count are the last that the GPU starts. */
__device__ __forceinline__ void stamp_end(const cuda_ops_stamps &s)
{
    if (!s.times || blockIdx.x + s.counting < gridDim.x)
        return;
    __syncthreads();
    if (threadIdx.x == 0) {
        const uint64_t now = gpu_clock();
        if (s.counting == 1 || arrive_last(reinterpret_cast<uint32_t *>(s.count), s.counting))
            reinterpret_cast<volatile uint64_t *>(s.times)[1] = now;
    }
}

#endif

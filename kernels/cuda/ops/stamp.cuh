/* Stamps: a kernel writes when its first block began and its last block ended. They need no events. */
#ifndef KOPS_CUDA_OPS_STAMP_CUH
#define KOPS_CUDA_OPS_STAMP_CUH

#include "clock.cuh"
#include "params.h"

/* Call at the beginning of the kernel. The GPU starts block 0 first. */
__device__ __forceinline__ void stamp_start(const cuda_ops_stamps &s)
{
    if (s.times && blockIdx.x == 0 && threadIdx.x == 0)
        reinterpret_cast<volatile uint64_t *>(s.times)[0] = gpu_clock();
}

/* Call at the end of the kernel, in all threads of the block. Blocks that count are the last that the GPU starts. */
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

/* The GPU's clock, and a count that blocks of a grid share. */
#ifndef KOPS_CUDA_OPS_CLOCK_CUH
#define KOPS_CUDA_OPS_CLOCK_CUH

#include <stdint.h>

/* Nanoseconds; the same for all multiprocessors. The length of its steps depends on the GPU: see jobs/stamps.c. */
__device__ __forceinline__ uint64_t gpu_clock()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

/* Adds one to *count, which becomes 0 again behind the n-th. True for the n-th. */
__device__ __forceinline__ bool arrive_last(uint32_t *count, uint32_t n)
{
    return atomicInc(count, n - 1) == n - 1;
}

#endif

/* The GPU's clock, and a counter that the blocks of a grid share. */
#ifndef KOPS_CUDA_OPS_CLOCK_CUH
#define KOPS_CUDA_OPS_CLOCK_CUH

#include <stdint.h>

/* Returns nanoseconds, on one clock for all multiprocessors. The resolution depends on the GPU: see jobs/stamps.c. */
__device__ __forceinline__ uint64_t gpu_clock()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

/* Increments *count. The n-th call returns true and sets *count to 0. */
__device__ __forceinline__ bool arrive_last(uint32_t *count, uint32_t n)
{
    return atomicInc(count, n - 1) == n - 1;
}

#endif

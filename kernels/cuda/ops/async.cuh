/* Asynchronous copies from global to shared memory (sm_80 on). A thread puts its copies into groups, and waits for
 * groups in their order. Each function is one instruction of NVIDIA's PTX ISA document. */
#ifndef KOPS_CUDA_OPS_ASYNC_CUH
#define KOPS_CUDA_OPS_ASYNC_CUH

#include "cluster.cuh"

/* Copies BYTES (4, 8 or 16, aligned to as many) to shared memory. Only the first `here` bytes are read; the others
 * become 0. */
template <int BYTES> __device__ __forceinline__ void copy_async(void *to, const void *from, int here)
{
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                     "r"(here)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES),
                     "r"(here)
                     : "memory");
}

/* Ends a group, which may be empty. */
__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for all groups of this thread except the last N. */
template <int N> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif

/* Blocks of a cluster, which run at the same time and see each other's shared memory: from sm_90 on. */
#ifndef KOPS_CUDA_OPS_CLUSTER_CUH
#define KOPS_CUDA_OPS_CLUSTER_CUH

#include <stdint.h>

__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* All threads of all blocks of the cluster. What they wrote before, all see after. */
__device__ __forceinline__ void cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The same, but what was written becomes visible to nobody: for what was read. */
__device__ __forceinline__ void cluster_barrier_relaxed()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The value of this block's `place` in shared memory, of block `rank`. */
__device__ __forceinline__ float cluster_load(const float *place, uint32_t rank)
{
    const uint32_t here = (uint32_t)__cvta_generic_to_shared(place);
    float value;
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %1, %2;\n"
                 "ld.shared::cluster.f32 %0, [there];\n}\n"
                 : "=f"(value)
                 : "r"(here), "r"(rank)
                 : "memory");
    return value;
}

#endif

/* Instructions since sm_90: clusters, whose blocks run at the same time and access each other's shared memory, and
 * barriers in shared memory. Each function is one or two instructions of NVIDIA's PTX ISA document. Addresses of shared
 * memory are 32-bit. */
#ifndef KOPS_CUDA_OPS_CLUSTER_CUH
#define KOPS_CUDA_OPS_CLUSTER_CUH

#include <stdint.h>

#include "clock.cuh"

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- clusters ---- */

__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* A barrier of all threads of the cluster: each calls cluster_arrive(), then cluster_wait(). It makes no writes
 * visible, except barriers after barrier_init_done(). */
__device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* ---- barriers in shared memory: a phase ends when all arrivals and all announced bytes have come ---- */

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* Makes initialised barriers visible to the cluster and to TMA. */
__device__ __forceinline__ void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* Arrives at the barrier with this address in block `rank` of the cluster. Writes do not become visible to that block:
 * that would take a fence each time. */
__device__ __forceinline__ void barrier_arrive(uint32_t barrier, uint32_t rank)
{
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

__device__ __forceinline__ bool barrier_try(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

/* Waits for the end of the phase with that parity. With KOPS_LAB_BOUNDED, for kernels under development, an endless
 * wait becomes a fault. */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
#ifdef KOPS_LAB_BOUNDED
    const uint64_t begin = gpu_clock();
    while (!barrier_try(barrier, parity)) {
        if (gpu_clock() - begin > 1000000000)
            __trap();
    }
#else
    while (!barrier_try(barrier, parity))
        ;
#endif
}

/* Writes `value` to the shared memory of block `rank`, at the address that `place` has in this block. The four bytes
 * arrive at that block's barrier, whose waiters then see them. */
__device__ __forceinline__ void cluster_send(const float *place, uint32_t rank, float value, uint32_t barrier)
{
    asm volatile("{\n.reg .b32 there, its_barrier;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mapa.shared::cluster.u32 its_barrier, %3, %1;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %2, [its_barrier];\n}\n" ::"r"(
                     shared_address(place)),
                 "r"(rank), "r"(__float_as_uint(value)), "r"(barrier)
                 : "memory");
}

/* Sends two neighbouring values; `place` is aligned to eight bytes. */
__device__ __forceinline__ void cluster_send(const float *place, uint32_t rank, float low, float high, uint32_t barrier)
{
    asm volatile(
        "{\n.reg .b32 there, its_barrier;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mapa.shared::cluster.u32 its_barrier, %4, %1;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [there], {%2, %3}, [its_barrier];\n}\n" ::"r"(
            shared_address(place)),
        "r"(rank), "r"(__float_as_uint(low)), "r"(__float_as_uint(high)), "r"(barrier)
        : "memory");
}

#endif

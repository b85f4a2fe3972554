/* Instructions of sm_90a: the tensor memory accelerator (TMA), named barriers, registers moved between warpgroups. Each
 * function is one instruction of NVIDIA's PTX ISA document. Addresses of shared memory are 32-bit. */
#ifndef KOPS_CUDA_OPS_HOPPER_CUH
#define KOPS_CUDA_OPS_HOPPER_CUH

#include <stdint.h>

#include "cluster.cuh"
#include "params.h"

/* ---- barriers ---- */

/* Waits at one of the block's 16 numbered barriers for `threads` threads; 0 is the barrier of __syncthreads(). */
__device__ __forceinline__ void named_barrier(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(int number, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* ---- TMA ---- */

__device__ __forceinline__ void map_prefetch(const cuda_ops_map &map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/* Loads the map's box at (x, y, z), x innermost, to shared memory; its bytes arrive at the barrier. Elements outside of
 * the tensor become 0, and their bytes arrive, too. */
__device__ __forceinline__ void map_load(uint32_t to, const cuda_ops_map &map, int x, int y, int z, uint32_t barrier)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
        : "memory");
}

/* Loads to each block of the cluster whose bit is in `blocks`, at equal addresses of its shared memory and barrier. */
__device__ __forceinline__ void map_load(uint32_t to, const cuda_ops_map &map, int x, int y, int z, uint32_t barrier,
                                         uint16_t blocks)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(blocks)
        : "memory");
}

/* Stores a box from shared memory, without elements outside of the tensor. Other threads' writes to the box must have
 * been followed by store_prepare() and a barrier. */
__device__ __forceinline__ void map_store(const cuda_ops_map &map, uint32_t from, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
                 "r"(x), "r"(y), "r"(z), "r"(from)
                 : "memory");
}

__device__ __forceinline__ void store_prepare()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void store_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most PENDING groups of this thread's stores still have to read shared memory. */
template <int PENDING> __device__ __forceinline__ void store_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

/* Waits for the end of this thread's stores. */
__device__ __forceinline__ void store_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* ---- registers ---- */

template <int COUNT> __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* Stores four 8 × 8 blocks of 16-bit elements. Lane 8q + r gives the address of row r of block q. Each lane holds two
 * neighbouring elements of every block: row lane / 4, from column 2(lane mod 4) on. */
__device__ __forceinline__ void store_blocks(uint32_t row, uint32_t b0, uint32_t b1, uint32_t b2, uint32_t b3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(b0), "r"(b1),
                 "r"(b2), "r"(b3)
                 : "memory");
}

/* ---- panels as wgmma reads them ---- */

/* A panel in shared memory, at a multiple of 1,024 bytes, as TMA writes it with 128-byte swizzle: rows of 128 bytes (64
 * elements) along k, or pieces of 64 rows or columns by 64 steps of k that lie across. Its descriptor ("Matrix
 * Descriptor" in the document) has the address, the stride of pieces and the stride of eight rows, in units of 16
 * bytes. */
enum { PANEL_STEPS = 64, PANEL_PIECE_BYTES = 64 * 128 };

template <int ACROSS> __device__ __forceinline__ uint64_t panel_descriptor(uint32_t address)
{
    const uint64_t piece = ACROSS ? PANEL_PIECE_BYTES / 16 : 1, eight_rows = 1024 / 16, swizzle_128 = 1;
    return (address & 0x3ffff) >> 4 | piece << 16 | eight_rows << 32 | swizzle_128 << 62;
}

/* Added to a descriptor for 16 steps of k. */
template <int ACROSS> constexpr uint64_t panel_advance = ACROSS ? 16 * 128 / 16 : 16 * 2 / 16;

#endif

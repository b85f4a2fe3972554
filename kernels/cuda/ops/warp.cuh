/* Tensor-core instructions that a whole warp executes together. Unit tests replace the headers that hold PTX, and run
 * the rest of the kernels on the CPU.
 *
 * Layout of the registers: "Matrix Fragments for mma.m16n8k16" and "… mma.m16n8k8" in NVIDIA's PTX ISA document. */
#ifndef KOPS_CUDA_OPS_WARP_CUH
#define KOPS_CUDA_OPS_WARP_CUH

#include "dtypes.cuh"

/* A lane's part of 16 × 16 elements: four 8 × 8 blocks at (x, k) = (0, 0), (8, 0), (0, 8), (8, 8). */
struct gemm_fragment {
    uint32_t block[4];
};

template <bool TRANSPOSED> __device__ __forceinline__ gemm_fragment load_fragment(const void *row)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    gemm_fragment f;
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(f.block[0]), "=r"(f.block[1]), "=r"(f.block[2]), "=r"(f.block[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(f.block[0]), "=r"(f.block[1]), "=r"(f.block[2]), "=r"(f.block[3])
                     : "r"(address)
                     : "memory");
    return f;
}

/* sum += a · b, for a 16 × 16 fragment of a and half a fragment (8 columns) of b. */
__device__ __forceinline__ void multiply_add(float (&sum)[4], const gemm_fragment &a, uint32_t b_low, uint32_t b_high,
                                             __half)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.block[0]), "r"(a.block[1]), "r"(a.block[2]), "r"(a.block[3]), "r"(b_low), "r"(b_high));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.block[0]), "r"(a.block[1]), "r"(b_low));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.block[2]), "r"(a.block[3]), "r"(b_high));
#endif
}

#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void multiply_add(float (&sum)[4], const gemm_fragment &a, uint32_t b_low, uint32_t b_high,
                                             __nv_bfloat16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.block[0]), "r"(a.block[1]), "r"(a.block[2]), "r"(a.block[3]), "r"(b_low), "r"(b_high));
}

/* Rounds to nearest, ties away from zero. */
__device__ __forceinline__ uint32_t to_tf32(float x)
{
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/* sum += a · b, 16 × 8 over 8 steps of k. Lane 4 · g + t holds: a's rows g and g + 8 of step t, then of step t + 4; b's
 * column g of steps t and t + 4; the sum's columns 2t and 2t + 1 of row g, then of row g + 8. */
__device__ __forceinline__ void multiply_add_tf32(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

#endif

/* f32 functions of the special function units, each one instruction of NVIDIA's PTX ISA document. Errors are 2^-22 or
 * less; subnormal numbers count as 0. */
#ifndef KOPS_CUDA_OPS_QUICK_CUH
#define KOPS_CUDA_OPS_QUICK_CUH

__device__ __forceinline__ float quick_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float quick_reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

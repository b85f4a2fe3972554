/* Steps 1 to 3 of the ladder: the product of bf16 matrices as the tutorials begin, with tiles in shared memory, and
 * with mma.sync, which are the tiled kernels. Step 4 on is ladder_hopper.cu. Numbers are in README.md. */
#include "../ops/gemm_mma.cuh"
#include "../ops/gemm_simt.cuh"

/* Step 1: a thread for each element of out. */
extern "C" __global__ void __launch_bounds__(256) kops_gemm_ladder_naive(const __grid_constant__ cuda_ops_gemm p)
{
    using T = __nv_bfloat16;
    const uint64_t count = p.m * p.n;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x) {
        const uint64_t row = i / p.n, column = i % p.n;
        const T *a = reinterpret_cast<const T *>(p.a.address) + row * p.a.row;
        const T *b = reinterpret_cast<const T *>(p.b.address) + column * p.b.column;
        float sum = 0;

        for (uint64_t k = 0; k < p.k; k++)
            sum += widen(a[k * p.a.column]) * widen(b[k * p.b.row]);
        reinterpret_cast<T *>(p.out.address)[row * p.out.row + column * p.out.column] = element<T>::narrow(sum);
    }
}

CUDA_OPS_GEMM(ladder_simt, 2, true, gemm_simt<__nv_bfloat16, 128, 128, 16, 8, 8>)
CUDA_OPS_GEMM(ladder_mma, 2, true, gemm_mma<__nv_bfloat16, 128, 128, 32, 64, 32>)

/* What a product goes through between its sums and out: a bias is added, and an activation applied, in the type of the
 * sums. It is done to the sums in place, before they are written as those of a plain product are, which it costs one
 * branch. */
#ifndef KOPS_CUDA_OPS_GEMM_EPILOGUE_CUH
#define KOPS_CUDA_OPS_GEMM_EPILOGUE_CUH

#include "dtypes.cuh"
#include "params.h"

__device__ __forceinline__ float gemm_erf(float x)
{
    return erff(x);
}

__device__ __forceinline__ double gemm_erf(double x)
{
    return erf(x);
}

__device__ __forceinline__ float gemm_tanh(float x)
{
    return tanhf(x);
}

__device__ __forceinline__ double gemm_tanh(double x)
{
    return tanh(x);
}

/* Keeps NaNs. */
template <typename W> __device__ __forceinline__ W gemm_relu(W x)
{
    return x < 0 ? W(0) : x;
}

template <typename W> __device__ __forceinline__ W gemm_gelu(W x)
{
    return W(0.5) * x * (1 + gemm_erf(x * W(0.70710678118654752)));
}

template <typename W> __device__ __forceinline__ W gemm_gelu_tanh(W x)
{
    return W(0.5) * x * (1 + gemm_tanh(W(0.79788456080286536) * (x + W(0.044715) * x * x * x)));
}

__device__ __forceinline__ bool gemm_has_epilogue(const cuda_ops_gemm &p)
{
    return p.bias.address != 0;
}

template <typename W> __device__ __forceinline__ W gemm_activate(W x, uint32_t activation)
{
    switch (activation) {
    case CUDA_OPS_RELU:
        return gemm_relu(x);
    case CUDA_OPS_GELU:
        return gemm_gelu(x);
    case CUDA_OPS_GELU_TANH:
        return gemm_gelu_tanh(x);
    default:
        return x;
    }
}

/* Finishes a thread's `sums`, of which the n-th is at place_of(n), a row and a column of the tile; those outside of the
 * tile's `rows` and `columns` have no bias, and stay. The tile's bias begins at element `first`.
 *
 * The sums are copied to an array that a loop walks over, in local memory: unrolled over registers, the activations
 * would be most of a kernel's code, and cost the loop over k registers. */
template <typename T, typename W, int N, typename Place>
__device__ __forceinline__ void gemm_epilogue(const cuda_ops_gemm &p, uint64_t first, int rows, int columns,
                                              W (&sums)[N], Place place_of)
{
    const T *bias = reinterpret_cast<const T *>(p.bias.address) + first;
    const W alpha = (W)p.alpha;
    W x[N];

#pragma unroll
    for (int n = 0; n < N; n++)
        x[n] = sums[n];
#pragma unroll 2
    for (int n = 0; n < N; n++) {
        const int2 at = place_of(n);
        if (at.x < rows && at.y < columns)
            x[n] = gemm_activate(alpha * x[n] + widen(bias[at.x * p.bias.row + at.y * p.bias.column]), p.activation);
    }
#pragma unroll
    for (int n = 0; n < N; n++)
        sums[n] = x[n];
}

#endif

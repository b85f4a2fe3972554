/* What a product goes through between its sums and out: a bias is added, and an activation applied, in the type of the
 * sums. It is done to the sums in place, before they are written, by kernels of their own (kops_linear_…): in the
 * kernels of plain products this code would cost the loop over k registers. */
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

/* Finishes a thread's I × J sums. at(i, j) is one of them, at row row_of(i) and column column_of(j) of the tile; those
 * outside of the tile's `rows` and `columns` have no bias. The tile's bias begins at element `first`. */
template <typename T, typename W, int I, int J, typename RowOf, typename ColumnOf, typename At>
__device__ __forceinline__ void gemm_epilogue(const cuda_ops_gemm &p, uint64_t first, int rows, int columns,
                                              RowOf row_of, ColumnOf column_of, At at)
{
    const T *bias = reinterpret_cast<const T *>(p.bias.address) + first;
    const W alpha = (W)p.alpha;
    const bool rows_alike = p.bias.row == 0;

#pragma unroll
    for (int j = 0; j < J; j++) {
        const bool inside = column_of(j) < columns;
        const T *place = bias + column_of(j) * p.bias.column;
        const W of_all = inside && rows_alike ? widen(*place) : W(0);
#pragma unroll
        for (int i = 0; i < I; i++) {
            const bool own = inside && !rows_alike && row_of(i) < rows;
            at(i, j) = alpha * at(i, j) + (own ? widen(place[row_of(i) * p.bias.row]) : of_all);
        }
    }
#define CUDA_OPS_ACTIVATE(function)                                                                                    \
    _Pragma("unroll") for (int j = 0; j < J; j++) _Pragma("unroll") for (int i = 0; i < I; i++) at(i, j) =             \
        function(at(i, j))
    switch (p.activation) {
    case CUDA_OPS_RELU:
        CUDA_OPS_ACTIVATE(gemm_relu);
        break;
    case CUDA_OPS_GELU:
        CUDA_OPS_ACTIVATE(gemm_gelu);
        break;
    case CUDA_OPS_GELU_TANH:
        CUDA_OPS_ACTIVATE(gemm_gelu_tanh);
        break;
    default:
        break;
    }
#undef CUDA_OPS_ACTIVATE
}

#endif

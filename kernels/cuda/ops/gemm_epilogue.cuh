/* The epilogue of a product: a bias is added and an activation applied, in the type of the sums and in place, before
 * they are written. Only kops_linear_… kernels have it: in the kernels of plain products this code would cost the loop
 * over k registers. */
#ifndef KOPS_CUDA_OPS_GEMM_EPILOGUE_CUH
#define KOPS_CUDA_OPS_GEMM_EPILOGUE_CUH

#include "dtypes.cuh"
#include "params.h"
#include "quick.cuh"

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

/* NaN stays NaN. */
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

/* gelu for a 16-bit out, in a third of the instructions, since tensor-core kernels have no time to hide more.
 *
 * gelu(x) = x · Φ(x). For z = |x| ≤ 6 the logarithm of the tail, log2(1 − Φ(z)), is −1 + z · p(z), where p is a minimax
 * polynomial of degree 7, fitted by reweighted least squares, with an error of at most 4.5e-6. Beyond 6 the
 * approximation falls to 0 faster than the tail. So gelu's absolute error is at most 6e-7, its relative error above −6
 * at most 8e-6; half a unit in the last place of f16 is 2.4e-4. */
__device__ __forceinline__ float gemm_gelu_quick(float x)
{
    const float z = fabsf(x);
    float y = -5.7365735e-08f;

    y = fmaf(y, z, -5.2102206e-07f);
    y = fmaf(y, z, 4.9386635e-05f);
    y = fmaf(y, z, -8.7136496e-04f);
    y = fmaf(y, z, 8.3483318e-03f);
    y = fmaf(y, z, -5.3723130e-02f);
    y = fmaf(y, z, -4.5864344e-01f);
    y = fmaf(y, z, -1.1511940f);
    y = quick_exp2(fmaf(y, z, -1.0f));
    return x * (x < 0 ? y : 1 - y);
}

/* x/2 · (1 + tanh(u)) = x / (1 + exp(−2u)). */
__device__ __forceinline__ float gemm_gelu_tanh_quick(float x)
{
    constexpr float SCALE = -2.302208198f /* −2 · √(2/π) · log2(e) */, CUBE = SCALE * 0.044715f;

    return x * quick_reciprocal(1 + quick_exp2(x * fmaf(CUBE, x * x, SCALE)));
}

/* Applies the activation to a single sum. */
__device__ __forceinline__ float gemm_activate(float x, uint32_t activation)
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

__device__ __forceinline__ bool gemm_has_epilogue(const cuda_ops_gemm &p)
{
    return p.bias.address != 0;
}

/* Finishes a thread's I × J sums: at(i, j) is the sum at row row_of(i) and column column_of(j) of the tile. Sums
 * outside of the tile's `rows` and `columns` get no bias. The tile's bias begins at element `first`. */
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

/* out = gelu(a), by erf, applied to f32 and f64 products of a library. */
#include "elementwise.cuh"
#include "gemm_epilogue.cuh"

struct gelu {
    static constexpr int ARITY = 1;
    template <typename W> static __device__ __forceinline__ W apply(W a, W)
    {
        return gemm_gelu(a);
    }
};

CUDA_OPS_ELEMENTWISE(gelu, f32, float, gelu)
CUDA_OPS_ELEMENTWISE(gelu, f64, double, gelu)

/* out = a · a. */
#include "elementwise.cuh"

struct square {
    static constexpr int ARITY = 1;
    template <typename W> static __device__ __forceinline__ W apply(W a, W)
    {
        return a * a;
    }
};

CUDA_OPS_ELEMENTWISE_NUMBERS(square, square)

/* out = a + b. */
#include "elementwise.cuh"

struct add {
    static constexpr int ARITY = 2;
    template <typename W> static __device__ __forceinline__ W apply(W a, W b)
    {
        return a + b;
    }
};

CUDA_OPS_ELEMENTWISE_NUMBERS(add, add)

/* out = (a + b)², in one pass: computed in the wide type, and rounded to the dtype once. */
#include "elementwise.cuh"

struct add_square {
    static constexpr int ARITY = 2;
    template <typename W> static __device__ __forceinline__ W apply(W a, W b)
    {
        const W x = a + b;
        return x * x;
    }
};

CUDA_OPS_ELEMENTWISE_NUMBERS(add_square, add_square)

/* out = a, bit by bit, for elements of 2, 4 and 8 bytes. */
#include "elementwise.cuh"

struct copy {
    static constexpr int ARITY = 1;
    template <typename T> static __device__ __forceinline__ T result(T x, T)
    {
        return x;
    }
};

CUDA_OPS_STRIDED(copy_2, uint16_t, copy)
CUDA_OPS_STRIDED(copy_4, uint32_t, copy)
CUDA_OPS_STRIDED(copy_8, uint64_t, copy)

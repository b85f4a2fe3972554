// Words of the language. A shared variable is one of thread-local storage: that makes it static where it stands in a
// function, is a memory of its own in the object, and every instance of a template has its own.
#ifndef KOPS_HOST_LANGUAGE_H
#define KOPS_HOST_LANGUAGE_H

#define __global__
#define __device__
#define __host__
#define __managed__
#define __constant__
#define __grid_constant__
// Used, so that the compiler does not take a variable that nothing writes for a zero.
#define __shared__ __attribute__((used)) thread_local
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __forceinline__      inline __attribute__((always_inline))
#define __align__(n)         __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)

// What `extern __shared__` becomes: an array that the linker places at the object's dynamic shared memory.
#define KOPS_HOST_DYNAMIC extern __attribute__((visibility("hidden")))
// What `__noinline__` becomes.
#define KOPS_HOST_NOINLINE __attribute__((noinline))

#define KOPS_INTERPRET       1
#define __CUDACC__           1
#define __CUDACC_RTC__       1
#define __CUDA_ARCH__        900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define CUDART_VERSION       13000
#define CUDA_VERSION         13000

// In this header's own functions.
#define KOPS_HOST inline __attribute__((always_inline))
// The place of a call, given by the caller: default arguments are evaluated there.
#define KOPS_HOST_PLACE const char *kops_file = __builtin_FILE(), unsigned kops_line = __builtin_LINE()

// Vector types and dimensions, aligned as on the device.

#define KOPS_HOST_VECTOR(NAME, T, ALIGN1, ALIGN2, ALIGN4)                                                              \
    struct alignas(ALIGN1) NAME##1                                                                                     \
    {                                                                                                                  \
        T x;                                                                                                           \
    };                                                                                                                 \
    struct alignas(ALIGN2) NAME##2                                                                                     \
    {                                                                                                                  \
        T x, y;                                                                                                        \
    };                                                                                                                 \
    struct alignas(ALIGN1) NAME##3                                                                                     \
    {                                                                                                                  \
        T x, y, z;                                                                                                     \
    };                                                                                                                 \
    struct alignas(ALIGN4) NAME##4                                                                                     \
    {                                                                                                                  \
        T x, y, z, w;                                                                                                  \
    };                                                                                                                 \
    KOPS_HOST NAME##1 make_##NAME##1(T x)                                                                              \
    {                                                                                                                  \
        return {x};                                                                                                    \
    }                                                                                                                  \
    KOPS_HOST NAME##2 make_##NAME##2(T x, T y)                                                                         \
    {                                                                                                                  \
        return {x, y};                                                                                                 \
    }                                                                                                                  \
    KOPS_HOST NAME##3 make_##NAME##3(T x, T y, T z)                                                                    \
    {                                                                                                                  \
        return {x, y, z};                                                                                              \
    }                                                                                                                  \
    KOPS_HOST NAME##4 make_##NAME##4(T x, T y, T z, T w)                                                               \
    {                                                                                                                  \
        return {x, y, z, w};                                                                                           \
    }

KOPS_HOST_VECTOR(char, signed char, 1, 2, 4)
KOPS_HOST_VECTOR(uchar, unsigned char, 1, 2, 4)
KOPS_HOST_VECTOR(short, short, 2, 4, 8)
KOPS_HOST_VECTOR(ushort, unsigned short, 2, 4, 8)
KOPS_HOST_VECTOR(int, int, 4, 8, 16)
KOPS_HOST_VECTOR(uint, unsigned int, 4, 8, 16)
KOPS_HOST_VECTOR(long, long, 8, 16, 16)
KOPS_HOST_VECTOR(ulong, unsigned long, 8, 16, 16)
KOPS_HOST_VECTOR(longlong, long long, 8, 16, 16)
KOPS_HOST_VECTOR(ulonglong, unsigned long long, 8, 16, 16)
KOPS_HOST_VECTOR(float, float, 4, 8, 16)
KOPS_HOST_VECTOR(double, double, 8, 16, 16)

#undef KOPS_HOST_VECTOR

struct dim3 {
    unsigned x, y, z;

    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }

    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }

    constexpr operator uint3() const
    {
        return {x, y, z};
    }
};

// Constant for a thread, which is all that a function sees of them.
extern "C" {
extern const uint3 threadIdx, blockIdx;
extern const uint3 blockDim __asm__("kops_host_block_size");
extern const uint3 gridDim __asm__("kops_host_grid_size");
}

constexpr int warpSize = 32;

#endif

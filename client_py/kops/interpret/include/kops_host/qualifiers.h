// Words of the language. A shared variable is one of thread-local storage: that makes it static where it stands in a
// function, is a memory of its own in the object, and every instance of a template has its own.
#ifndef KOPS_HOST_QUALIFIERS_H
#define KOPS_HOST_QUALIFIERS_H

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

#endif

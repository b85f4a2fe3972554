#include "compile/toolkit.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Names with blanks between them. Empty headers: included by host code, of no use to a kernel. */
static const char empty[] =
    "cstdarg stdarg.h ATen/ATen.h ATen/Dispatch.h ATen/Functions.h ATen/Tensor.h ATen/core/Tensor.h "
    "ATen/cuda/CUDAContext.h ATen/cuda/CUDAGeneratorImpl.h ATen/cuda/CUDAUtils.h ATen/cuda/Exceptions.h "
    "ATen/ops/empty.h ATen/ops/empty_like.h ATen/ops/zeros.h ATen/ops/zeros_like.h GL/freeglut.h GL/gl.h GL/glew.h "
    "GL/glut.h alloca.h any arpa/inet.h assert.h atomic barrier bitset byteswap.h c10/core/DeviceGuard.h "
    "c10/cuda/CUDACachingAllocator.h c10/cuda/CUDAException.h c10/cuda/CUDAFunctions.h c10/cuda/CUDAGuard.h "
    "c10/cuda/CUDAStream.h c10/util/Exception.h c10/util/Optional.h cctype cerrno cfenv channel_descriptor.h charconv "
    "chrono clocale codecvt compare complex.h condition_variable coroutine cpuid.h csetjmp csignal ctype.h "
    "cub/device/device_adjacent_difference.cuh cub/device/device_copy.cuh cub/device/device_for.cuh "
    "cub/device/device_histogram.cuh cub/device/device_memcpy.cuh cub/device/device_merge_sort.cuh "
    "cub/device/device_partition.cuh cub/device/device_radix_sort.cuh cub/device/device_reduce.cuh "
    "cub/device/device_run_length_encode.cuh cub/device/device_scan.cuh cub/device/device_segmented_radix_sort.cuh "
    "cub/device/device_segmented_reduce.cuh cub/device/device_segmented_sort.cuh cub/device/device_select.cuh "
    "cub/device/device_spmv.cuh cub/device/device_transform.cuh cub/util_allocator.cuh cuchar cuda_gl_interop.h "
    "cuda_profiler_api.h cudnn.h cudnn_frontend.h cusparse.h cwchar cwctype cxxabi.h deque dirent.h dlfcn.h "
    "emmintrin.h endian.h err.h errno.h exception execinfo.h execution fcntl.h fenv.h filesystem format forward_list "
    "fstream ftw.h future getopt.h glob.h helper_cuda.h helper_cuda_drvapi.h helper_cuda_gl.h helper_functions.h "
    "helper_gl.h helper_image.h helper_multiprocess.h helper_string.h helper_timer.h immintrin.h iomanip ios iosfwd "
    "iostream iso646.h istream latch libgen.h link.h linux/limits.h list locale locale.h malloc.h map memory memory.h "
    "memory_resource mpi.h mutex nccl.h netdb.h netinet/in.h new nvToolsExt.h nvml.h nvtx3/nvToolsExt.h "
    "nvtx3/nvToolsExtCuda.h nvtx3/nvToolsExtCudaRt.h nvtx3/nvtx3.hpp omp.h ostream poll.h pthread.h pwd.h "
    "pybind11/numpy.h pybind11/pybind11.h pybind11/stl.h queue random ranges regex sched.h scoped_allocator semaphore "
    "semaphore.h set setjmp.h shared_mutex signal.h source_location sstream stack stdalign.h stdbool.h stdexcept "
    "stop_token streambuf string_view strings.h syncstream sys/file.h sys/ioctl.h sys/mman.h sys/param.h "
    "sys/resource.h sys/select.h sys/socket.h sys/stat.h sys/syscall.h sys/sysinfo.h sys/uio.h sys/utsname.h "
    "sys/wait.h syslog.h system_error termios.h tgmath.h thread thrust/adjacent_difference.h thrust/async/copy.h "
    "thrust/async/for_each.h thrust/async/reduce.h thrust/async/scan.h thrust/async/sort.h thrust/async/transform.h "
    "thrust/binary_search.h thrust/copy.h thrust/count.h thrust/device_allocator.h thrust/device_delete.h "
    "thrust/device_free.h thrust/device_make_unique.h thrust/device_malloc.h thrust/device_malloc_allocator.h "
    "thrust/device_new.h thrust/device_new_allocator.h thrust/device_ptr.h thrust/device_reference.h "
    "thrust/device_vector.h thrust/equal.h thrust/execution_policy.h thrust/extrema.h thrust/fill.h thrust/find.h "
    "thrust/for_each.h thrust/gather.h thrust/generate.h thrust/host_vector.h thrust/inner_product.h thrust/logical.h "
    "thrust/memory.h thrust/merge.h thrust/mismatch.h thrust/partition.h thrust/per_device_resource.h thrust/random.h "
    "thrust/reduce.h thrust/remove.h thrust/replace.h thrust/reverse.h thrust/scan.h thrust/scatter.h "
    "thrust/sequence.h thrust/set_operations.h thrust/shuffle.h thrust/sort.h thrust/system/cuda/execution_policy.h "
    "thrust/system/cuda/memory.h thrust/system/cuda/vector.h thrust/system/omp/execution_policy.h "
    "thrust/system_error.h thrust/tabulate.h thrust/transform.h thrust/transform_reduce.h thrust/transform_scan.h "
    "thrust/uninitialized_copy.h thrust/uninitialized_fill.h thrust/unique.h thrust/universal_allocator.h "
    "thrust/universal_ptr.h thrust/universal_vector.h torch/all.h torch/csrc/autograd/custom_function.h "
    "torch/extension.h torch/library.h torch/script.h torch/torch.h torch/types.h typeindex typeinfo uchar.h unistd.h "
    "unordered_map unordered_set valarray values.h version wchar.h wctype.h x86intrin.h xmmintrin.h";

/* Headers of libraries, with types that a kernel may use: empty only where the toolkit has no such file. */
static const char fallback[] =
    "cublas.h cublasXt.h cudaProfiler.h cuda_occupancy.h cufft.h cufftXt.h cufftw.h cupti.h curand.h cusolverDn.h "
    "cusolverSp.h cusparse_v2.h nvJitLink.h nvrtc.h";

/* Headers of the C++ library, whose parts for kernels the toolkit has as cuda/std. */
static const char of_toolkit[] =
    "array bit complex concepts functional initializer_list iterator limits numbers numeric optional ratio span tuple "
    "type_traits utility variant";

/* Headers in short. In place of their own lines, "+a.h b.h" includes these, "=A 1;B 2" defines macros, and "?A 1;B 2"
 * defines those that the toolkit's own headers, or the source, have not. Each begins with #pragma once. */
static const struct {
    const char *name, *text;
} headers[] = {
    {"algorithm",
     "namespace std {\n"
     "template <class T> __host__ __device__ constexpr const T &min(const T &a, const T &b) { return b < a ? b : a; }\n"
     "template <class T> __host__ __device__ constexpr const T &max(const T &a, const T &b) { return a < b ? b : a; }\n"
     "template <class T> __host__ __device__ constexpr const T &clamp(const T &a, const T &low, const T &high)\n"
     "{ return a < low ? low : high < a ? high : a; }\n"
     "template <class T> __host__ __device__ constexpr void swap(T &a, T &b) { T c = a; a = b; b = c; }\n"
     "}\n"},
    {"cassert", "+assert.h\n"},
    {"cfloat", "+float.h\n"},
    {"climits", "+limits.h\n"},
    {"cmath",
     "+math.h\n"
     "namespace std {\n"
     "using ::abs; using ::acos; using ::acosh; using ::asin; using ::asinh; using ::atan; using ::atan2; using "
     "::atanh;\n"
     "using ::cbrt; using ::ceil; using ::copysign; using ::cos; using ::cosh; using ::erf; using ::erfc; using "
     "::exp;\n"
     "using ::exp2; using ::expm1; using ::fabs; using ::fdim; using ::floor; using ::fma; using ::fmax; using "
     "::fmin;\n"
     "using ::fmod; using ::frexp; using ::hypot; using ::ilogb; using ::isfinite; using ::isinf; using ::isnan;\n"
     "using ::ldexp; using ::lgamma; using ::llrint; using ::llround; using ::log; using ::log10; using ::log1p;\n"
     "using ::log2; using ::logb; using ::lrint; using ::lround; using ::modf; using ::nan; using ::nearbyint;\n"
     "using ::nextafter; using ::pow; using ::remainder; using ::remquo; using ::rint; using ::round; using "
     "::scalbln;\n"
     "using ::scalbn; using ::signbit; using ::sin; using ::sinh; using ::sqrt; using ::tan; using ::tanh;\n"
     "using ::tgamma; using ::trunc;\n"
     "}\n"},
    {"cstddef", "+stddef.h\nnamespace std { using ::size_t; using ::ptrdiff_t; }\n"},
    {"cstdint",
     "+stdint.h\n"
     "namespace std {\n"
     "using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t; using ::intptr_t; using ::intmax_t;\n"
     "using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t; using ::uintptr_t; using ::uintmax_t;\n"
     "}\n"},
    {"cstdio", "+stdio.h\n"},
    {"cstdlib", "+stdlib.h\n"},
    {"cstring", "+string.h\nnamespace std { using ::memcpy; using ::memset; }\n"},
    {"cinttypes", "+cstdint\n"},
    {"inttypes.h", "+stdint.h\n"},
    {"thrust/swap.h", "+cuda/std/utility\nnamespace thrust { using cuda::std::swap; }\n"},
    {"ctime", "+time.h\n"},
    /* The parts for kernels: the rest is for the host, and does not compile here. */
    {"cub/cub.cuh",
     "+cub/block/block_adjacent_difference.cuh cub/block/block_discontinuity.cuh cub/block/block_exchange.cuh\n"
     "+cub/block/block_histogram.cuh cub/block/block_load.cuh cub/block/block_merge_sort.cuh\n"
     "+cub/block/block_radix_rank.cuh cub/block/block_radix_sort.cuh cub/block/block_reduce.cuh\n"
     "+cub/block/block_run_length_decode.cuh cub/block/block_scan.cuh cub/block/block_shuffle.cuh\n"
     "+cub/block/block_store.cuh cub/warp/warp_exchange.cuh cub/warp/warp_load.cuh cub/warp/warp_merge_sort.cuh\n"
     "+cub/warp/warp_reduce.cuh cub/warp/warp_scan.cuh cub/warp/warp_store.cuh cub/thread/thread_load.cuh\n"
     "+cub/thread/thread_operators.cuh cub/thread/thread_reduce.cuh cub/thread/thread_scan.cuh\n"
     "+cub/thread/thread_search.cuh cub/thread/thread_sort.cuh cub/thread/thread_store.cuh\n"
     "+cub/iterator/arg_index_input_iterator.cuh cub/iterator/cache_modified_input_iterator.cuh\n"
     "+cub/iterator/cache_modified_output_iterator.cuh\n"},
    {"cublasLt.h", "+cublas_v2.h\n"},
    {"cublas_v2.h", "+cuda_bf16.h cuda_fp16.h library_types.h\n"},
    /* The type of tensor maps, and names for what host code has. */
    {"cuda.h", "typedef struct CUtensorMap_st { alignas(64) unsigned long long opaque[16]; } CUtensorMap;\n"
               "typedef unsigned long long CUdeviceptr;\n"
               "typedef int CUdevice;\n"
               "typedef struct CUctx_st *CUcontext;\n"
               "typedef struct CUmod_st *CUmodule;\n"
               "typedef struct CUfunc_st *CUfunction;\n"
               "typedef struct CUstream_st *CUstream;\n"
               "typedef struct CUevent_st *CUevent;\n"},
    {"cudaTypedefs.h", "+cuda.h\n"},
    {"float.h", "?FLT_RADIX 2;FLT_MANT_DIG 24;FLT_DIG 6;FLT_MAX 3.402823466e+38F;FLT_MIN 1.175494351e-38F\n"
                "?FLT_EPSILON 1.192092896e-07F;FLT_TRUE_MIN 1.401298464e-45F;FLT_MIN_EXP (-125);FLT_MAX_EXP 128\n"
                "?FLT_MIN_10_EXP (-37);FLT_MAX_10_EXP 38;DBL_MIN_EXP (-1021);DBL_MAX_EXP 1024;DBL_MIN_10_EXP (-307)\n"
                "?DBL_MAX_10_EXP 308;DECIMAL_DIG 17;DBL_MANT_DIG 53;DBL_DIG 15;DBL_MAX 1.7976931348623157e+308\n"
                "?DBL_MIN 2.2250738585072014e-308;DBL_EPSILON 2.2204460492503131e-16\n"},
    /* nvcc includes cuda_runtime.h and, by it, headers of the host: names that a source may use without an #include. No
     * kernel calls the functions for the host of the toolkit's headers. */
    {"kops/prelude.h",
     "+float.h math.h stddef.h sys/types.h\n"
     "#undef __host__\n"
     "=__host__ ;__builtin_huge_val() HUGE_VAL;__builtin_huge_valf() HUGE_VALF;__builtin_inf() HUGE_VAL\n"
     "=__builtin_inff() HUGE_VALF;__builtin_nan(text) ((double)NAN);__builtin_nanf(text) NAN;__CHAR_BIT__ 8\n"
     "=__SCHAR_MAX__ 127;__SHRT_MAX__ 32767;__INT_MAX__ 2147483647;__LONG_MAX__ 9223372036854775807L\n"
     "=__LONG_LONG_MAX__ 9223372036854775807LL;__SIZE_MAX__ 18446744073709551615UL;__INT8_MAX__ 127\n"
     "=__INT16_MAX__ 32767;__INT32_MAX__ 2147483647;__INT64_MAX__ 9223372036854775807L;__UINT8_MAX__ 255\n"
     "=__UINT16_MAX__ 65535;__UINT32_MAX__ 4294967295U;__UINT64_MAX__ 18446744073709551615UL;__SIZEOF_SHORT__ 2\n"
     "=__SIZEOF_INT__ 4;__SIZEOF_LONG__ 8;__SIZEOF_LONG_LONG__ 8;__SIZEOF_FLOAT__ 4;__SIZEOF_DOUBLE__ 8\n"
     "=__SIZEOF_POINTER__ 8;__SIZEOF_SIZE_T__ 8;__FLT_RADIX__ FLT_RADIX;__FLT_DIG__ FLT_DIG\n"
     "=__FLT_MANT_DIG__ FLT_MANT_DIG;__FLT_MAX__ FLT_MAX;__FLT_MIN__ FLT_MIN;__FLT_EPSILON__ FLT_EPSILON\n"
     "=__FLT_DENORM_MIN__ FLT_TRUE_MIN;__DBL_DIG__ DBL_DIG;__DBL_MANT_DIG__ DBL_MANT_DIG;__DBL_MAX__ DBL_MAX\n"
     "=__DBL_MIN__ DBL_MIN;__DBL_EPSILON__ DBL_EPSILON;__DBL_DENORM_MIN__ 4.9406564584124654e-324\n"
     "typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t;\n"
     "typedef unsigned short uint16_t; typedef int int32_t; typedef unsigned int uint32_t;\n"
     "typedef long long int64_t; typedef unsigned long long uint64_t;\n"},
    /* As the prelude, for sources that use namespace std. */
    {"kops/prelude_std.h", "+algorithm cmath cstddef cstdint cstring limits type_traits utility\n"},
    {"limits.h",
     "#if __has_include(<cuda/std/climits>) /* the same types and macros as the toolkit's own headers */\n"
     "+cuda/std/climits\n"
     "#else\n"
     "=CHAR_BIT 8;SCHAR_MIN (-128);SCHAR_MAX 127;UCHAR_MAX 255;CHAR_MIN SCHAR_MIN;CHAR_MAX SCHAR_MAX\n"
     "=SHRT_MIN (-32767 - 1);SHRT_MAX 32767;USHRT_MAX 65535;INT_MIN (-2147483647 - 1);INT_MAX 2147483647\n"
     "=UINT_MAX 4294967295U;LONG_MIN (-9223372036854775807L - 1);LONG_MAX 9223372036854775807L\n"
     "=ULONG_MAX 18446744073709551615UL;LLONG_MIN (-9223372036854775807LL - 1);LLONG_MAX 9223372036854775807LL\n"
     "=ULLONG_MAX 18446744073709551615ULL\n"
     "#endif\n"},
    {"math.h", "#ifndef INFINITY\n"
               "=INFINITY (__int_as_float(0x7f800000));NAN (__int_as_float(0x7fffffff));HUGE_VALF INFINITY\n"
               "=HUGE_VAL (__longlong_as_double(0x7ff0000000000000LL))\n"
               "#endif\n"
               "#ifndef M_PI\n"
               "=M_E 2.7182818284590452354;M_LOG2E 1.4426950408889634074;M_LOG10E 0.43429448190325182765\n"
               "=M_LN2 0.69314718055994530942;M_LN10 2.30258509299404568402;M_PI 3.14159265358979323846\n"
               "=M_PI_2 1.57079632679489661923;M_PI_4 0.78539816339744830962;M_1_PI 0.31830988618379067154\n"
               "=M_2_PI 0.63661977236758134308;M_2_SQRTPI 1.12837916709551257390;M_SQRT2 1.41421356237309504880\n"
               "=M_SQRT1_2 0.70710678118654752440\n"
               "#endif\n"},
    {"stddef.h", "?NULL 0\n#ifndef offsetof\n=offsetof(type, member) __builtin_offsetof(type, member)\n#endif\n"},
    {"stdint.h",
     "#if __has_include(<cuda/std/cstdint>) /* the same types and macros as the toolkit's own headers */\n"
     "+cuda/std/cstdint\n"
     "#else\n"
     "typedef signed char int8_t, int_least8_t, int_fast8_t;\n"
     "typedef unsigned char uint8_t, uint_least8_t, uint_fast8_t;\n"
     "typedef short int16_t, int_least16_t, int_fast16_t;\n"
     "typedef unsigned short uint16_t, uint_least16_t, uint_fast16_t;\n"
     "typedef int int32_t, int_least32_t, int_fast32_t;\n"
     "typedef unsigned int uint32_t, uint_least32_t, uint_fast32_t;\n"
     "typedef long long int64_t, int_least64_t, int_fast64_t, intptr_t, intmax_t;\n"
     "typedef unsigned long long uint64_t, uint_least64_t, uint_fast64_t, uintptr_t, uintmax_t;\n"
     "=INT8_MIN (-128);INT8_MAX 127;UINT8_MAX 255;INT16_MIN (-32767 - 1);INT16_MAX 32767;UINT16_MAX 65535\n"
     "=INT32_MIN (-2147483647 - 1);INT32_MAX 2147483647;UINT32_MAX 4294967295U\n"
     "=INT64_MIN (-9223372036854775807LL - 1);INT64_MAX 9223372036854775807LL;UINT64_MAX 18446744073709551615ULL\n"
     "#endif\n"
     "?SIZE_MAX 18446744073709551615ULL\n"},
    {"stdio.h", "+stddef.h\ntypedef struct kops_file FILE;\n"},
    {"stdlib.h", "+stddef.h\n?EXIT_SUCCESS 0;EXIT_FAILURE 1;RAND_MAX 2147483647\n"},
    /* As large as the library's, so that a struct with one has the host's layout. */
    {"string", "namespace std { class string { void *text; unsigned long length, room[2]; }; }\n"},
    {"string.h", "+stddef.h\n"},
    {"sys/time.h", "struct timeval { long tv_sec, tv_usec; };\nstruct timezone { int tz_minuteswest, tz_dsttime; };\n"},
    {"sys/types.h",
     "typedef unsigned short ushort; typedef unsigned int uint; typedef unsigned long ulong; typedef long ssize_t;\n"},
    {"time.h", "typedef long long time_t;\nstruct timespec { long tv_sec, tv_nsec; };\nstruct tm;\n"},
    {"vector", "namespace std { template <class T, class A = void> class vector { T *first, *last, *room; }; }\n"},
};

enum { N_HEADERS = sizeof(headers) / sizeof(headers[0]), MAX_NAMES = 384, MAX_TEXTS = 32 << 10 /* bytes */ };

static struct {
    struct compile_file files[N_HEADERS + MAX_NAMES];
    char texts[MAX_TEXTS]; /* names, and files */
    size_t used;
    unsigned n;
} builtin;

/* printf() behind the texts; what is constant fits. */
static void __attribute__((format(printf, 1, 2))) add_text(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    builtin.used += (size_t)vsnprintf(builtin.texts + builtin.used, MAX_TEXTS - builtin.used, format, arguments);
    va_end(arguments);
}

static void add_line(const char *line, size_t length)
{
    const char kind = *line, *end = line + length;

    if (!strchr("+=?", kind)) {
        add_text("%.*s\n", (int)length, line);
        return;
    }
    for (const char *at = line + 1, *next; at < end; at = next + 1) {
        const int n = (int)((next = at + strcspn(at, kind == '+' ? " \n" : ";\n")) - at);

        if (kind == '?')
            add_text("#ifndef %.*s\n", (int)strcspn(at, " "), at);
        add_text(kind == '+' ? "#include <%.*s>\n" : "#define %.*s\n", n, at);
        if (kind == '?')
            add_text("#endif\n");
    }
}

/* A file whose text begins at `start`. */
static void add_file(const char *name, size_t start)
{
    builtin.files[builtin.n++] = (struct compile_file){name, builtin.texts + start, builtin.used - start};
    builtin.used++; /* the ending zero */
}

/* Returns how many names the list has. */
static unsigned add_list(const char *list, bool is_of_toolkit)
{
    unsigned n = 0;

    for (size_t length; *list; list += length + (list[length] == ' '), n++) {
        const char *name = builtin.texts + builtin.used;
        size_t start;

        length = strcspn(list, " ");
        add_text("%.*s", (int)length, list);
        start = ++builtin.used;
        if (is_of_toolkit)
            add_text("#pragma once\n#include <cuda/std/%s>\nnamespace std {\nusing namespace cuda::std;\n}\n", name);
        else
            add_text("\n");
        add_file(name, start);
    }
    return n;
}

const struct compile_file *headers_builtin(unsigned *ret_n, unsigned *ret_n_fallback)
{
    static unsigned n_fallback;

    for (unsigned i = 0; !n_fallback && i < N_HEADERS; i++) {
        const size_t start = builtin.used;
        const char *line = headers[i].text;

        add_text("#pragma once\n");
        for (size_t length; *line; line += length + 1)
            add_line(line, length = strcspn(line, "\n"));
        add_file(headers[i].name, start);
    }
    if (!n_fallback) {
        add_list(of_toolkit, true);
        add_list(empty, false);
        n_fallback = add_list(fallback, false);
    }
    *ret_n = builtin.n;
    *ret_n_fallback = n_fallback;
    return builtin.files;
}

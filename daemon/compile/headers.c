#include "compile/headers.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Guards keep what the toolkit's own headers, or the source, have defined already. */
static const struct {
    const char *name, *text;
} headers[] = {
    {"algorithm", "#pragma once\n"
                  "namespace std {\n"
                  "template <class T> __host__ __device__ constexpr const T &min(const T &a, const T &b)\n"
                  "{\n"
                  "    return b < a ? b : a;\n"
                  "}\n"
                  "template <class T> __host__ __device__ constexpr const T &max(const T &a, const T &b)\n"
                  "{\n"
                  "    return a < b ? b : a;\n"
                  "}\n"
                  "template <class T>\n"
                  "__host__ __device__ constexpr const T &clamp(const T &a, const T &low, const T &high)\n"
                  "{\n"
                  "    return a < low ? low : high < a ? high : a;\n"
                  "}\n"
                  "template <class T> __host__ __device__ constexpr void swap(T &a, T &b)\n"
                  "{\n"
                  "    T c = a;\n"
                  "    a = b;\n"
                  "    b = c;\n"
                  "}\n"
                  "}\n"},
    {"cassert", "#pragma once\n"
                "#include <assert.h>\n"},
    {"cfloat", "#pragma once\n"
               "#include <float.h>\n"},
    {"climits", "#pragma once\n"
                "#include <limits.h>\n"},
    {"cmath",
     "#pragma once\n"
     "#include <math.h>\n"
     "namespace std {\n"
     "using ::abs; using ::acos; using ::acosh; using ::asin; using ::asinh; using ::atan; using ::atan2; "
     "using ::atanh; using ::cbrt;\n"
     "using ::ceil; using ::copysign; using ::cos; using ::cosh; using ::erf; using ::erfc; using ::exp; "
     "using ::exp2; using ::expm1;\n"
     "using ::fabs; using ::fdim; using ::floor; using ::fma; using ::fmax; using ::fmin; using ::fmod; using "
     "::hypot; using ::isfinite;\n"
     "using ::isinf; using ::isnan; using ::lgamma; using ::log; using ::log10; using ::log1p; using ::log2; "
     "using ::nearbyint; using ::pow;\n"
     "using ::remainder; using ::rint; using ::round; using ::signbit; using ::sin; using ::sinh; using "
     "::sqrt; using ::tan; using ::tanh;\n"
     "using ::tgamma; using ::trunc;\n"
     "using ::frexp; using ::ilogb; using ::ldexp; using ::llrint; using ::llround; using ::logb; using ::lrint;\n"
     "using ::lround; using ::modf; using ::nan; using ::nextafter; using ::remquo; using ::scalbln; using ::scalbn;\n"
     "}\n"},
    {"cstddef", "#pragma once\n"
                "#include <stddef.h>\n"
                "namespace std {\n"
                "using ::size_t; using ::ptrdiff_t;\n"
                "}\n"},
    {"cstdint", "#pragma once\n"
                "#include <stdint.h>\n"
                "namespace std {\n"
                "using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t;\n"
                "using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t;\n"
                "using ::intptr_t; using ::uintptr_t; using ::intmax_t; using ::uintmax_t;\n"
                "}\n"},
    {"cstdio", "#pragma once\n"
               "#include <stdio.h>\n"},
    {"cstdlib", "#pragma once\n"
                "#include <stdlib.h>\n"},
    {"cstring", "#pragma once\n"
                "#include <string.h>\n"
                "namespace std {\n"
                "using ::memcpy; using ::memset;\n"
                "}\n"},
    {"cinttypes", "#pragma once\n"
                  "#include <cstdint>\n"},
    {"inttypes.h", "#pragma once\n"
                   "#include <stdint.h>\n"},
    {"thrust/swap.h", "#pragma once\n"
                      "#include <cuda/std/utility>\n"
                      "namespace thrust {\n"
                      "using cuda::std::swap;\n"
                      "}\n"},
    {"ctime", "#pragma once\n"
              "#include <time.h>\n"},
    {"cub/cub.cuh", "/* What a kernel may use of it: the rest is for the host, and does not compile here. */\n"
                    "#pragma once\n"
                    "#include <cub/block/block_adjacent_difference.cuh>\n"
                    "#include <cub/block/block_discontinuity.cuh>\n"
                    "#include <cub/block/block_exchange.cuh>\n"
                    "#include <cub/block/block_histogram.cuh>\n"
                    "#include <cub/block/block_load.cuh>\n"
                    "#include <cub/block/block_merge_sort.cuh>\n"
                    "#include <cub/block/block_radix_rank.cuh>\n"
                    "#include <cub/block/block_radix_sort.cuh>\n"
                    "#include <cub/block/block_reduce.cuh>\n"
                    "#include <cub/block/block_run_length_decode.cuh>\n"
                    "#include <cub/block/block_scan.cuh>\n"
                    "#include <cub/block/block_shuffle.cuh>\n"
                    "#include <cub/block/block_store.cuh>\n"
                    "#include <cub/warp/warp_exchange.cuh>\n"
                    "#include <cub/warp/warp_load.cuh>\n"
                    "#include <cub/warp/warp_merge_sort.cuh>\n"
                    "#include <cub/warp/warp_reduce.cuh>\n"
                    "#include <cub/warp/warp_scan.cuh>\n"
                    "#include <cub/warp/warp_store.cuh>\n"
                    "#include <cub/thread/thread_load.cuh>\n"
                    "#include <cub/thread/thread_operators.cuh>\n"
                    "#include <cub/thread/thread_reduce.cuh>\n"
                    "#include <cub/thread/thread_scan.cuh>\n"
                    "#include <cub/thread/thread_search.cuh>\n"
                    "#include <cub/thread/thread_sort.cuh>\n"
                    "#include <cub/thread/thread_store.cuh>\n"
                    "#include <cub/iterator/arg_index_input_iterator.cuh>\n"
                    "#include <cub/iterator/cache_modified_input_iterator.cuh>\n"
                    "#include <cub/iterator/cache_modified_output_iterator.cuh>\n"},
    {"cublasLt.h", "#pragma once\n"
                   "#include <cublas_v2.h>\n"},
    {"cublas_v2.h", "#pragma once\n"
                    "#include <cuda_bf16.h>\n"
                    "#include <cuda_fp16.h>\n"
                    "#include <library_types.h>\n"},
    {"cuda.h", "/* What a kernel may use of it: the type of tensor maps, and names for what host code has. */\n"
               "#pragma once\n"
               "typedef struct CUtensorMap_st {\n"
               "    alignas(64) unsigned long long opaque[16];\n"
               "} CUtensorMap;\n"
               "typedef unsigned long long CUdeviceptr;\n"
               "typedef int CUdevice;\n"
               "typedef struct CUctx_st *CUcontext;\n"
               "typedef struct CUmod_st *CUmodule;\n"
               "typedef struct CUfunc_st *CUfunction;\n"
               "typedef struct CUstream_st *CUstream;\n"
               "typedef struct CUevent_st *CUevent;\n"},
    {"cudaTypedefs.h", "#pragma once\n"
                       "#include <cuda.h>\n"},
    {"float.h", "#pragma once\n"
                "#ifndef FLT_RADIX\n"
                "#define FLT_RADIX 2\n"
                "#endif\n"
                "#ifndef FLT_MANT_DIG\n"
                "#define FLT_MANT_DIG 24\n"
                "#endif\n"
                "#ifndef FLT_DIG\n"
                "#define FLT_DIG 6\n"
                "#endif\n"
                "#ifndef FLT_MAX\n"
                "#define FLT_MAX 3.402823466e+38F\n"
                "#endif\n"
                "#ifndef FLT_MIN\n"
                "#define FLT_MIN 1.175494351e-38F\n"
                "#endif\n"
                "#ifndef FLT_EPSILON\n"
                "#define FLT_EPSILON 1.192092896e-07F\n"
                "#endif\n"
                "#ifndef FLT_TRUE_MIN\n"
                "#define FLT_TRUE_MIN 1.401298464e-45F\n"
                "#endif\n"
                "#ifndef FLT_MAX_EXP\n"
                "#define FLT_MIN_EXP (-125)\n"
                "#define FLT_MAX_EXP 128\n"
                "#define FLT_MIN_10_EXP (-37)\n"
                "#define FLT_MAX_10_EXP 38\n"
                "#define DBL_MIN_EXP (-1021)\n"
                "#define DBL_MAX_EXP 1024\n"
                "#define DBL_MIN_10_EXP (-307)\n"
                "#define DBL_MAX_10_EXP 308\n"
                "#define DECIMAL_DIG 17\n"
                "#endif\n"
                "#ifndef DBL_MANT_DIG\n"
                "#define DBL_MANT_DIG 53\n"
                "#endif\n"
                "#ifndef DBL_DIG\n"
                "#define DBL_DIG 15\n"
                "#endif\n"
                "#ifndef DBL_MAX\n"
                "#define DBL_MAX 1.7976931348623157e+308\n"
                "#endif\n"
                "#ifndef DBL_MIN\n"
                "#define DBL_MIN 2.2250738585072014e-308\n"
                "#endif\n"
                "#ifndef DBL_EPSILON\n"
                "#define DBL_EPSILON 2.2204460492503131e-16\n"
                "#endif\n"},
    {"kops/prelude.h", "/* What a source for nvcc may use without an #include, since nvcc includes cuda_runtime.h and, "
                       "by it, headers of the host. */\n"
                       "#pragma once\n"
                       "#include <float.h>\n"
                       "#include <math.h>\n"
                       "#include <stddef.h>\n"
                       "#include <sys/types.h>\n"
                       "#undef __host__ /* functions of the toolkit's headers: no kernel calls them */\n"
                       "#define __host__\n"
                       "#define __builtin_huge_val() HUGE_VAL\n"
                       "#define __builtin_huge_valf() HUGE_VALF\n"
                       "#define __builtin_inf() HUGE_VAL\n"
                       "#define __builtin_inff() HUGE_VALF\n"
                       "#define __builtin_nan(text) ((double)NAN)\n"
                       "#define __builtin_nanf(text) NAN\n"
                       "#define __CHAR_BIT__ 8\n"
                       "#define __SCHAR_MAX__ 127\n"
                       "#define __SHRT_MAX__ 32767\n"
                       "#define __INT_MAX__ 2147483647\n"
                       "#define __LONG_MAX__ 9223372036854775807L\n"
                       "#define __LONG_LONG_MAX__ 9223372036854775807LL\n"
                       "#define __SIZE_MAX__ 18446744073709551615UL\n"
                       "#define __INT8_MAX__ 127\n"
                       "#define __INT16_MAX__ 32767\n"
                       "#define __INT32_MAX__ 2147483647\n"
                       "#define __INT64_MAX__ 9223372036854775807L\n"
                       "#define __UINT8_MAX__ 255\n"
                       "#define __UINT16_MAX__ 65535\n"
                       "#define __UINT32_MAX__ 4294967295U\n"
                       "#define __UINT64_MAX__ 18446744073709551615UL\n"
                       "#define __SIZEOF_SHORT__ 2\n"
                       "#define __SIZEOF_INT__ 4\n"
                       "#define __SIZEOF_LONG__ 8\n"
                       "#define __SIZEOF_LONG_LONG__ 8\n"
                       "#define __SIZEOF_FLOAT__ 4\n"
                       "#define __SIZEOF_DOUBLE__ 8\n"
                       "#define __SIZEOF_POINTER__ 8\n"
                       "#define __SIZEOF_SIZE_T__ 8\n"
                       "#define __FLT_RADIX__ FLT_RADIX\n"
                       "#define __FLT_DIG__ FLT_DIG\n"
                       "#define __FLT_MANT_DIG__ FLT_MANT_DIG\n"
                       "#define __FLT_MAX__ FLT_MAX\n"
                       "#define __FLT_MIN__ FLT_MIN\n"
                       "#define __FLT_EPSILON__ FLT_EPSILON\n"
                       "#define __FLT_DENORM_MIN__ FLT_TRUE_MIN\n"
                       "#define __DBL_DIG__ DBL_DIG\n"
                       "#define __DBL_MANT_DIG__ DBL_MANT_DIG\n"
                       "#define __DBL_MAX__ DBL_MAX\n"
                       "#define __DBL_MIN__ DBL_MIN\n"
                       "#define __DBL_EPSILON__ DBL_EPSILON\n"
                       "#define __DBL_DENORM_MIN__ 4.9406564584124654e-324\n"
                       "typedef signed char int8_t;\n"
                       "typedef unsigned char uint8_t;\n"
                       "typedef short int16_t;\n"
                       "typedef unsigned short uint16_t;\n"
                       "typedef int int32_t;\n"
                       "typedef unsigned int uint32_t;\n"
                       "typedef long long int64_t;\n"
                       "typedef unsigned long long uint64_t;\n"},
    {"kops/prelude_std.h",
     "/* As the prelude, for sources that use namespace std: what the C++ library's <cmath>, <cstdlib>, "
     "<cstring> and <utility> bring along. */\n"
     "#pragma once\n"
     "#include <algorithm>\n"
     "#include <cmath>\n"
     "#include <cstddef>\n"
     "#include <cstdint>\n"
     "#include <cstring>\n"
     "#include <limits>\n"
     "#include <type_traits>\n"
     "#include <utility>\n"},
    {"limits.h", "#pragma once\n"
                 "#if __has_include(<cuda/std/climits>) /* the same types and macros as the toolkit's own headers */\n"
                 "#include <cuda/std/climits>\n"
                 "#else\n"
                 "#define CHAR_BIT 8\n"
                 "#define SCHAR_MIN (-128)\n"
                 "#define SCHAR_MAX 127\n"
                 "#define UCHAR_MAX 255\n"
                 "#define CHAR_MIN SCHAR_MIN\n"
                 "#define CHAR_MAX SCHAR_MAX\n"
                 "#define SHRT_MIN (-32767 - 1)\n"
                 "#define SHRT_MAX 32767\n"
                 "#define USHRT_MAX 65535\n"
                 "#define INT_MIN (-2147483647 - 1)\n"
                 "#define INT_MAX 2147483647\n"
                 "#define UINT_MAX 4294967295U\n"
                 "#define LONG_MIN (-9223372036854775807L - 1)\n"
                 "#define LONG_MAX 9223372036854775807L\n"
                 "#define ULONG_MAX 18446744073709551615UL\n"
                 "#define LLONG_MIN (-9223372036854775807LL - 1)\n"
                 "#define LLONG_MAX 9223372036854775807LL\n"
                 "#define ULLONG_MAX 18446744073709551615ULL\n"
                 "#endif\n"},
    {"math.h", "#pragma once\n"
               "#ifndef INFINITY\n"
               "#define INFINITY (__int_as_float(0x7f800000))\n"
               "#define NAN (__int_as_float(0x7fffffff))\n"
               "#define HUGE_VALF INFINITY\n"
               "#define HUGE_VAL (__longlong_as_double(0x7ff0000000000000LL))\n"
               "#endif\n"
               "#ifndef M_PI\n"
               "#define M_E 2.7182818284590452354\n"
               "#define M_LOG2E 1.4426950408889634074\n"
               "#define M_LOG10E 0.43429448190325182765\n"
               "#define M_LN2 0.69314718055994530942\n"
               "#define M_LN10 2.30258509299404568402\n"
               "#define M_PI 3.14159265358979323846\n"
               "#define M_PI_2 1.57079632679489661923\n"
               "#define M_PI_4 0.78539816339744830962\n"
               "#define M_1_PI 0.31830988618379067154\n"
               "#define M_2_PI 0.63661977236758134308\n"
               "#define M_2_SQRTPI 1.12837916709551257390\n"
               "#define M_SQRT2 1.41421356237309504880\n"
               "#define M_SQRT1_2 0.70710678118654752440\n"
               "#endif\n"},
    {"stddef.h", "#pragma once\n"
                 "#ifndef NULL\n"
                 "#define NULL 0\n"
                 "#endif\n"
                 "#ifndef offsetof\n"
                 "#define offsetof(type, member) __builtin_offsetof(type, member)\n"
                 "#endif\n"},
    {"stdint.h", "#pragma once\n"
                 "#if __has_include(<cuda/std/cstdint>) /* the same types and macros as the toolkit's own headers */\n"
                 "#include <cuda/std/cstdint>\n"
                 "#else\n"
                 "typedef signed char int8_t;\n"
                 "typedef unsigned char uint8_t;\n"
                 "typedef short int16_t;\n"
                 "typedef unsigned short uint16_t;\n"
                 "typedef int int32_t;\n"
                 "typedef unsigned int uint32_t;\n"
                 "typedef long long int64_t;\n"
                 "typedef unsigned long long uint64_t;\n"
                 "typedef signed char int_least8_t;\n"
                 "typedef unsigned char uint_least8_t;\n"
                 "typedef short int_least16_t;\n"
                 "typedef unsigned short uint_least16_t;\n"
                 "typedef int int_least32_t;\n"
                 "typedef unsigned int uint_least32_t;\n"
                 "typedef long long int_least64_t;\n"
                 "typedef unsigned long long uint_least64_t;\n"
                 "typedef signed char int_fast8_t;\n"
                 "typedef unsigned char uint_fast8_t;\n"
                 "typedef short int_fast16_t;\n"
                 "typedef unsigned short uint_fast16_t;\n"
                 "typedef int int_fast32_t;\n"
                 "typedef unsigned int uint_fast32_t;\n"
                 "typedef long long int_fast64_t;\n"
                 "typedef unsigned long long uint_fast64_t;\n"
                 "typedef long long intptr_t;\n"
                 "typedef unsigned long long uintptr_t;\n"
                 "typedef long long intmax_t;\n"
                 "typedef unsigned long long uintmax_t;\n"
                 "#define INT8_MIN (-128)\n"
                 "#define INT8_MAX 127\n"
                 "#define UINT8_MAX 255\n"
                 "#define INT16_MIN (-32767 - 1)\n"
                 "#define INT16_MAX 32767\n"
                 "#define UINT16_MAX 65535\n"
                 "#define INT32_MIN (-2147483647 - 1)\n"
                 "#define INT32_MAX 2147483647\n"
                 "#define UINT32_MAX 4294967295U\n"
                 "#define INT64_MIN (-9223372036854775807LL - 1)\n"
                 "#define INT64_MAX 9223372036854775807LL\n"
                 "#define UINT64_MAX 18446744073709551615ULL\n"
                 "#endif\n"
                 "#ifndef SIZE_MAX\n"
                 "#define SIZE_MAX 18446744073709551615ULL\n"
                 "#endif\n"},
    {"stdio.h", "#pragma once\n"
                "#include <stddef.h>\n"
                "typedef struct kops_file FILE;\n"},
    {"stdlib.h", "#pragma once\n"
                 "#include <stddef.h>\n"
                 "#ifndef EXIT_SUCCESS\n"
                 "#define EXIT_SUCCESS 0\n"
                 "#define EXIT_FAILURE 1\n"
                 "#define RAND_MAX 2147483647\n"
                 "#endif\n"},
    {"string", "/* As large as the library's, so that a struct with one has the host's layout. */\n"
               "#pragma once\n"
               "namespace std {\n"
               "class string {\n"
               "    void *text;\n"
               "    unsigned long length, room[2];\n"
               "};\n"
               "}\n"},
    {"string.h", "#pragma once\n"
                 "#include <stddef.h>\n"},
    {"sys/time.h", "#pragma once\n"
                   "struct timeval {\n"
                   "    long tv_sec, tv_usec;\n"
                   "};\n"
                   "struct timezone {\n"
                   "    int tz_minuteswest, tz_dsttime;\n"
                   "};\n"},
    {"sys/types.h", "#pragma once\n"
                    "typedef unsigned short ushort;\n"
                    "typedef unsigned int uint;\n"
                    "typedef unsigned long ulong;\n"
                    "typedef long ssize_t;\n"},
    {"time.h", "#pragma once\n"
               "typedef long long time_t;\n"
               "struct timespec {\n"
               "    long tv_sec, tv_nsec;\n"
               "};\n"
               "struct tm;\n"},
    {"vector", "#pragma once\n"
               "namespace std {\n"
               "template <class T, class A = void> class vector {\n"
               "    T *first, *last, *room;\n"
               "};\n"
               "}\n"},
};

enum { N_HEADERS = sizeof(headers) / sizeof(headers[0]), MAX_NAMES = 384, MAX_TEXTS = 16384 /* bytes */ };

static struct {
    struct compile_file files[N_HEADERS + MAX_NAMES];
    char texts[MAX_TEXTS]; /* of names, and texts made of names */
    size_t used;
    unsigned n;
} builtin;

/* printf() into the texts; of what is constant, so it fits. */
static const char *__attribute__((format(printf, 1, 2))) add_text(const char *format, ...)
{
    char *text = builtin.texts + builtin.used;
    va_list arguments;

    va_start(arguments, format);
    builtin.used += 1 + (size_t)vsnprintf(text, MAX_TEXTS - builtin.used, format, arguments);
    va_end(arguments);
    return text;
}

/* Returns how many names the list has. */
static unsigned add_list(const char *list, bool of_toolkit)
{
    unsigned n = 0;

    for (size_t length; *list; list += length + (list[length] == ' '), n++) {
        const char *name, *text = "\n";

        length = strcspn(list, " ");
        name = add_text("%.*s", (int)length, list);
        if (of_toolkit)
            text = add_text("#pragma once\n#include <cuda/std/%s>\nnamespace std {\nusing namespace cuda::std;\n}\n",
                            name);
        builtin.files[builtin.n++] = (struct compile_file){name, text, strlen(text)};
    }
    return n;
}

const struct compile_file *headers_builtin(unsigned *ret_n, unsigned *ret_n_fallback)
{
    static unsigned n_fallback;

    if (!builtin.n) {
        for (unsigned i = 0; i < N_HEADERS; i++)
            builtin.files[builtin.n++] =
                (struct compile_file){headers[i].name, headers[i].text, strlen(headers[i].text)};
        add_list(headers_of_toolkit, true);
        add_list(headers_empty, false);
        n_fallback = add_list(headers_fallback, false);
    }
    *ret_n = builtin.n;
    *ret_n_fallback = n_fallback;
    return builtin.files;
}

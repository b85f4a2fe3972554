// The CUDA runtime in small, for code of the host: words of CUDA as nothing, launches, calls through the table.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <string>
#include <stdexcept>
#include <vector>
#include <kops/abi.h>
#define __CUDACC__ 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__
#define __managed__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __ldg(p) (*(p))
#define CUDART_INF_F __builtin_inff()
#define CUDART_PI_F 3.141592654f
#define CUDART_VERSION 12080
#define CUDA_VERSION 12080
#define WARP_SIZE_ 32
namespace kops {
inline uint16_t to_half(float f) { uint32_t u; memcpy(&u, &f, 4); uint32_t s = u >> 16 & 0x8000, e = u >> 23 & 255, m = u & 0x7fffff; if (e == 255) return uint16_t(s | 0x7c00 | (m ? 0x200 : 0)); int x = int(e) - 112; if (x >= 31) return uint16_t(s | 0x7c00); if (x <= 0) { if (x < -10) return uint16_t(s); m |= 0x800000; int k = 14 - x; uint32_t r = m >> k, rest = m & ((1u << k) - 1), half = 1u << (k - 1); return uint16_t(s | (r + (rest > half || (rest == half && (r & 1))))); } uint32_t r = uint32_t(x) << 10 | m >> 13, rest = m & 0x1fff; return uint16_t(s | (r + (rest > 0x1000 || (rest == 0x1000 && (r & 1))))); }
inline float from_half(uint16_t h) { uint32_t s = uint32_t(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff, u; if (e == 31) u = s | 0x7f800000 | m << 13; else if (e) u = s | (e + 112) << 23 | m << 13; else { float f = float(m) / 16777216.f; memcpy(&u, &f, 4); u |= s; } float f; memcpy(&f, &u, 4); return f; } }
struct dim3 { unsigned x, y, z; constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {} };
struct uint3 { unsigned x, y, z; };
inline uint3 threadIdx, blockIdx; inline dim3 blockDim, gridDim; constexpr int warpSize = 32;
#define KOPS_V(T, N) struct N##1 { T x; }; struct alignas(2 * sizeof(T)) N##2 { T x, y; }; struct N##3 { T x, y, z; }; struct alignas(sizeof(T) < 8 ? 4 * sizeof(T) : 16) N##4 { T x, y, z, w; }; \
  inline N##1 make_##N##1(T x) { return {x}; } inline N##2 make_##N##2(T x, T y) { return {x, y}; } inline N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; } inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define uint3 kops_uint3
KOPS_V(char, char) KOPS_V(unsigned char, uchar) KOPS_V(short, short) KOPS_V(unsigned short, ushort) KOPS_V(int, int) KOPS_V(unsigned, uint) KOPS_V(long long, longlong) KOPS_V(unsigned long long, ulonglong) KOPS_V(long, long) KOPS_V(float, float) KOPS_V(double, double)
#undef uint3
struct __half { uint16_t x; __half() = default; __half(float f) : x(kops::to_half(f)) {} operator float() const { return kops::from_half(x); } };
struct __nv_bfloat16 { uint16_t x; __nv_bfloat16() = default; __nv_bfloat16(float f) { uint32_t u; memcpy(&u, &f, 4); x = (u + 0x7fff + ((u >> 16) & 1)) >> 16; } operator float() const { uint32_t u = uint32_t(x) << 16; float f; memcpy(&f, &u, 4); return f; } };
struct __half2 { __half x, y; }; struct __nv_bfloat162 { __nv_bfloat16 x, y; }; using half = __half; using half2 = __half2; using nv_bfloat16 = __nv_bfloat16; using nv_bfloat162 = __nv_bfloat162;
struct __nv_fp8_e4m3 { uint8_t x; }; struct __nv_fp8_e5m2 { uint8_t x; };
inline __half __float2half(float f) { return f; } inline __half __float2half_rn(float f) { return f; } inline float __half2float(__half h) { return h; } inline __nv_bfloat16 __float2bfloat16(float f) { return f; } inline float __bfloat162float(__nv_bfloat16 f) { return f; }
namespace cooperative_groups { struct thread_block {}; struct grid_group {}; } namespace nvcuda { namespace wmma { struct row_major; struct col_major; } } namespace cub {} namespace thrust {}
template <class A, class B> constexpr std::common_type_t<A, B> kops_max(A a, B b) { return a < b ? b : a; }
#define _(T) constexpr T min(T a, T b) { return b < a ? b : a; } constexpr T max(T a, T b) { return a < b ? b : a; }
_(int) _(unsigned) _(long) _(unsigned long) _(long long) _(unsigned long long) _(float) _(double)
#undef _
constexpr long min(int a, long b) { return b < a ? b : a; } constexpr long max(int a, long b) { return a < b ? b : a; } constexpr long min(long a, int b) { return b < a ? b : a; } constexpr long max(long a, int b) { return a < b ? b : a; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); } inline float rsqrt(float x) { return 1 / sqrtf(x); } inline float __expf(float x) { return expf(x); } inline float __fdividef(float a, float b) { return a / b; } inline int __float_as_int(float f) { int i; memcpy(&i, &f, 4); return i; } inline float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInvalidConfiguration = 9, cudaErrorUnknown = 999 }; typedef cudaError_t cudaError; struct CUstream_st; typedef CUstream_st* cudaStream_t; struct CUevent_st; typedef CUevent_st* cudaEvent_t;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9, cudaFuncAttributeNonPortableClusterSizeAllowed = 11 }; enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual }; enum cudaSharedmemCarveout { cudaSharedmemCarveoutDefault = -1, cudaSharedmemCarveoutMaxL1 = 0, cudaSharedmemCarveoutMaxShared = 100 };
enum cudaDeviceAttr { cudaDevAttrMaxThreadsPerBlock = 1, cudaDevAttrMaxBlockDimX = 2, cudaDevAttrMaxGridDimX = 5, cudaDevAttrMaxGridDimY = 6, cudaDevAttrMaxGridDimZ = 7, cudaDevAttrWarpSize = 10, cudaDevAttrCooperativeLaunch = 95, cudaDevAttrMaxThreadsPerMultiProcessor = 39, cudaDevAttrMaxSharedMemoryPerBlock = 8, cudaDevAttrMultiProcessorCount = 16, cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76, cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81, cudaDevAttrMaxSharedMemoryPerBlockOptin = 97 };
struct cudaDeviceProp { char name[256]; size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor; int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], major, minor, multiProcessorCount, maxThreadsPerMultiProcessor, l2CacheSize, clockRate, memoryClockRate, memoryBusWidth; };
namespace kops {
inline int64_t cuda(const char* name, int64_t a = 0, int64_t b = 0, int64_t c = 0, int64_t d = 0, int64_t* out = nullptr) { KopsValue v[4] = {{KOPS_INT, 0, a, 0, nullptr}, {KOPS_INT, 0, b, 0, nullptr}, {KOPS_INT, 0, c, 0, nullptr}, {KOPS_INT, 0, d, 0, nullptr}}; int r = table->cuda(name, v, 4, out); if (auto e = table->error()) throw std::runtime_error(e); return r; }
struct Pending { std::string kernel; std::vector<KopsArg> args; std::vector<std::string> bytes; bool set = false; }; inline thread_local Pending pending;
inline void pend(const char* k, const KopsArg* a, int n) { auto& p = pending; p.kernel = k; p.args.assign(a, a + n); p.bytes.clear(); for (auto& x : p.args) p.bytes.emplace_back((const char*)x.data, x.size); p.set = true; }
inline void launch(dim3 g, dim3 b, size_t shared = 0, cudaStream_t s = nullptr) { auto& p = pending; if (!p.set) throw std::runtime_error("a launch of something that is no kernel"); p.set = false; uint32_t d[6] = {g.x, g.y, g.z, b.x, b.y, b.z}; for (size_t i = 0; i < p.args.size(); i++) p.args[i].data = p.bytes[i].data(); table->launch(p.kernel.c_str(), d, shared, s, p.args.data(), int(p.args.size())); if (auto e = table->error()) throw std::runtime_error(e); }
template <class T> constexpr const char* tname() { return __PRETTY_FUNCTION__; }
template <class T> KopsArg arg(const T& x) { return {(const void*)&x, sizeof(T), std::is_pointer_v<T> ? 'p' : std::is_floating_point_v<T> ? 'f' : std::is_integral_v<T> || std::is_enum_v<T> ? (std::is_signed_v<T> ? 'i' : 'u') : 's', 0, tname<T>()}; }
template <class... A> void stub(const char* kernel, const A&... a) { KopsArg v[] = {arg(a)..., {}}; pend(kernel, v, sizeof...(A)); } }
#define _(N) inline cudaError_t N
_(cudaGetLastError)() { return cudaError_t(kops::cuda("cudaGetLastError")); } _(cudaPeekAtLastError)() { return cudaError_t(kops::cuda("cudaPeekAtLastError")); } _(cudaDeviceSynchronize)() { return cudaError_t(kops::cuda("cudaDeviceSynchronize")); } _(cudaStreamSynchronize)(cudaStream_t s) { return cudaError_t(kops::cuda("cudaStreamSynchronize", int64_t(s))); }
template <class T> cudaError_t cudaMalloc(T** p, size_t n) { return cudaError_t(kops::cuda("cudaMalloc", n, 0, 0, 0, (int64_t*)p)); } _(cudaFree)(void* p) { return cudaError_t(kops::cuda("cudaFree", int64_t(p))); } _(cudaMemcpy)(void* d, const void* s, size_t n, cudaMemcpyKind k) { return cudaError_t(kops::cuda("cudaMemcpy", int64_t(d), int64_t(s), n, k)); } _(cudaMemcpyAsync)(void* d, const void* s, size_t n, cudaMemcpyKind k, cudaStream_t = nullptr) { return cudaMemcpy(d, s, n, k); } _(cudaMemset)(void* d, int v, size_t n) { return cudaError_t(kops::cuda("cudaMemset", int64_t(d), v, n)); } _(cudaMemsetAsync)(void* d, int v, size_t n, cudaStream_t = nullptr) { return cudaMemset(d, v, n); }
template <class T> cudaError_t cudaMallocAsync(T** p, size_t n, cudaStream_t) { return cudaMalloc(p, n); } _(cudaFreeAsync)(void* p, cudaStream_t) { return cudaFree(p); } template <class T> cudaError_t cudaMallocManaged(T** p, size_t n, unsigned = 1) { return cudaMalloc(p, n); }
_(cudaGetDevice)(int* d) { *d = 0; return cudaSuccess; } _(cudaSetDevice)(int) { return cudaSuccess; } _(cudaGetDeviceCount)(int* d) { *d = 1; return cudaSuccess; } _(cudaGetDeviceProperties)(cudaDeviceProp* p, int) { return cudaError_t(kops::cuda("cudaGetDeviceProperties", int64_t(p))); } _(cudaDeviceGetAttribute)(int* v, cudaDeviceAttr a, int) { return cudaError_t(kops::cuda("cudaDeviceGetAttribute", int64_t(v), a)); }
_(cudaStreamCreate)(cudaStream_t* s) { *s = nullptr; return cudaSuccess; } _(cudaStreamCreateWithFlags)(cudaStream_t* s, unsigned) { *s = nullptr; return cudaSuccess; } _(cudaStreamDestroy)(cudaStream_t) { return cudaSuccess; } _(cudaEventCreate)(cudaEvent_t* e) { return cudaError_t(kops::cuda("cudaEventCreate", int64_t(e))); } _(cudaEventRecord)(cudaEvent_t e, cudaStream_t = nullptr) { return cudaError_t(kops::cuda("cudaEventRecord", int64_t(e))); } _(cudaEventSynchronize)(cudaEvent_t) { return cudaSuccess; } _(cudaEventDestroy)(cudaEvent_t) { return cudaSuccess; } _(cudaEventElapsedTime)(float* t, cudaEvent_t, cudaEvent_t) { *t = 0; return cudaSuccess; } _(cudaStreamWaitEvent)(cudaStream_t, cudaEvent_t, unsigned = 0) { return cudaSuccess; } constexpr unsigned cudaStreamNonBlocking = 1;
template <class F> cudaError_t cudaFuncSetAttribute(F f, cudaFuncAttribute a, int v) { return cudaError_t(kops::cuda("cudaFuncSetAttribute", int64_t(f), a, v)); } template <class F> cudaError_t cudaFuncSetCacheConfig(F, cudaFuncCache) { return cudaSuccess; } template <class F> cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, F f, int b, size_t s) { *n = 1; return cudaSuccess; } template <class F> cudaError_t cudaOccupancyMaxPotentialBlockSize(int* g, int* b, F, size_t = 0, int = 0) { *g = 132; *b = 256; return cudaSuccess; }
_(kops_to_symbol)(const char* name, const void* symbol, const void* s, size_t n, size_t o = 0, cudaMemcpyKind = cudaMemcpyHostToDevice, cudaStream_t = nullptr) { return cudaError_t(kops::cuda(name, int64_t(symbol), int64_t(s), n, o)); }
#define cudaMemcpyToSymbol(S, ...) kops_to_symbol(#S, &(S), __VA_ARGS__)
#define cudaMemcpyToSymbolAsync cudaMemcpyToSymbol
#undef _
template <class... P, size_t... I> void kops_unpack(void (*f)(P...), void** a, std::index_sequence<I...>) { f(*(P*)a[I]...); } template <class... P> cudaError_t cudaLaunchKernel(void (*f)(P...), dim3 g, dim3 b, void** a, size_t s = 0, cudaStream_t t = nullptr) { kops_unpack(f, a, std::index_sequence_for<P...>()); kops::launch(g, b, s, t); return cudaSuccess; } template <class F> cudaError_t cudaLaunchCooperativeKernel(F f, dim3 g, dim3 b, void** a, size_t s = 0, cudaStream_t t = nullptr) { return cudaLaunchKernel(f, g, b, a, s, t); }
inline const char* cudaGetErrorString(cudaError_t e) { return e ? "CUDA error" : "no error"; } inline const char* cudaGetErrorName(cudaError_t e) { return e ? "cudaErrorUnknown" : "cudaSuccess"; }

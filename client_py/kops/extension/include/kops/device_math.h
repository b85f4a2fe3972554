// pow() of kernels as nvcc has it with the C++ library's <cmath>: of a float and an integer it is a double, where
// NVRTC's own is a float.
#pragma once
#ifdef __CUDACC_RTC__
namespace kops
{
template <class A, class B> struct power {
    typedef double type;
};
template <> struct power<float, float> {
    typedef float type;
};
} // namespace kops
template <class A, class B> static __device__ __forceinline__ typename kops::power<A, B>::type kops_pow(A a, B b)
{
    typedef typename kops::power<A, B>::type type;
    return pow(static_cast<type>(a), static_cast<type>(b));
}
namespace std
{
using ::kops_pow;
}
#define pow(...) kops_pow(__VA_ARGS__)
#endif

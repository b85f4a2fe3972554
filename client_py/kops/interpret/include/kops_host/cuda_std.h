// The part of the C++ library that CUDA has for kernels under another name: here it is the host's.
#ifndef KOPS_HOST_CUDA_STD_H
#define KOPS_HOST_CUDA_STD_H

namespace cuda
{

// The threads that something is shared by.
enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };

namespace std
{
using namespace ::std;
}

// As function objects, for reductions.
template <typename = void> struct maximum {
    template <typename T> KOPS_HOST constexpr T operator()(const T &a, const T &b) const
    {
        return a < b ? b : a;
    }
};

template <typename = void> struct minimum {
    template <typename T> KOPS_HOST constexpr T operator()(const T &a, const T &b) const
    {
        return b < a ? b : a;
    }
};

} // namespace cuda

#endif

// The language of kernels for the system's C++ compiler: included before each source.
#ifndef CUDA_ON_HOST_H
#define CUDA_ON_HOST_H

#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <math.h>
#include <stdlib.h>
#include <type_traits>
#include <utility>

#include "kops_host/interface.h"

#include "kops_host/language.h"

#include "kops_host/shifts.h"

#include "kops_host/bits.h"

#include "kops_host/sync.h"

#include "kops_host/memory.h"

#include "kops_host/mathematics.h"

#include "kops_host/simd.h"

// Calling a kernel with arguments that are given by address, and what its parameters are.

template <typename T> constexpr const char *kops_host_type_name()
{
    return __PRETTY_FUNCTION__;
}

template <typename T> constexpr kops_host_parameter kops_host_describe()
{
    return {kops_host_type_name<typename std::remove_pointer<T>::type>(), unsigned(sizeof(T)),
            std::is_pointer<T>::value};
}

// The threads of launch bounds.
template <typename... More> constexpr unsigned kops_host_first(unsigned threads, More...)
{
    return threads;
}

template <auto F> struct kops_host_entry_of;

template <typename... P, void (*F)(P...)> struct kops_host_entry_of<F> {
    static constexpr unsigned n = sizeof...(P);
    static constexpr kops_host_parameter parameters[n + 1] = {kops_host_describe<P>()..., {}};

    template <size_t... I>
    __attribute__((no_sanitize("thread"))) static void call(void **arguments, std::index_sequence<I...>)
    {
        F(*static_cast<typename std::remove_cv<P>::type *>(arguments[I])...);
    }

    __attribute__((no_sanitize("thread"))) static void call(void **arguments)
    {
        (void)arguments;
        call(arguments, std::make_index_sequence<n>());
    }
};

#endif

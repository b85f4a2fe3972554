// Atomic functions. A thread runs until it waits, so reading and writing in one go is atomic; the access is checked first.
#ifndef KOPS_HOST_ATOMICS_H
#define KOPS_HOST_ATOMICS_H

// `current` is what is there, `value` the argument. The type of the pointer alone decides, as with overloads.
template <typename T> struct kops_host_same {
    typedef T type;
};

#define KOPS_HOST_ATOMIC(NAME, READS, NEXT)                                                                            \
    template <typename T>                                                                                              \
    __attribute__((always_inline, no_sanitize("thread"))) inline T kops_host_plain_##NAME(T *address, T value)         \
    {                                                                                                                  \
        T current = *address;                                                                                          \
        *address = NEXT;                                                                                               \
        return current;                                                                                                \
    }                                                                                                                  \
    template <typename T> KOPS_HOST T atomic##NAME(T *address, typename kops_host_same<T>::type value)                 \
    {                                                                                                                  \
        kops_host_atomic(address, sizeof(T), READS);                                                                   \
        return kops_host_plain_##NAME(address, value);                                                                 \
    }                                                                                                                  \
    template <typename T> KOPS_HOST T atomic##NAME(volatile T *address, typename kops_host_same<T>::type value)        \
    {                                                                                                                  \
        return atomic##NAME(const_cast<T *>(address), value);                                                          \
    }                                                                                                                  \
    template <typename T> KOPS_HOST T atomic##NAME##_block(T *address, typename kops_host_same<T>::type value)         \
    {                                                                                                                  \
        return atomic##NAME(address, value);                                                                           \
    }                                                                                                                  \
    template <typename T> KOPS_HOST T atomic##NAME##_system(T *address, typename kops_host_same<T>::type value)        \
    {                                                                                                                  \
        return atomic##NAME(address, value);                                                                           \
    }

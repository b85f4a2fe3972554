// Atomic functions. Between fetching what is there and storing what follows no other thread runs.
#ifndef KOPS_HOST_MEMORY_H
#define KOPS_HOST_MEMORY_H

// The type of the pointer alone decides, as with overloads.
template <typename T> struct kops_host_same {
    typedef T type;
};

template <typename T> KOPS_HOST T kops_host_fetch(T *address, int reads)
{
    return kops_host_value_of<T>(kops_host_atomic(address, sizeof(T), reads));
}

template <typename T> KOPS_HOST void kops_host_keep(T *address, T value)
{
    kops_host_store(address, sizeof(T), kops_host_bits_of(value));
}

// `old` is what is there, `value` the argument.
#define KOPS_HOST_ATOMIC(NAME, READS, NEXT)                                                                            \
    template <typename T> KOPS_HOST T atomic##NAME(T *address, typename kops_host_same<T>::type value)                 \
    {                                                                                                                  \
        T old = kops_host_fetch(address, READS);                                                                       \
        kops_host_keep<T>(address, T(NEXT));                                                                           \
        return old;                                                                                                    \
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

KOPS_HOST_ATOMIC(Add, 1, old + value)
KOPS_HOST_ATOMIC(Sub, 1, old - value)
KOPS_HOST_ATOMIC(Min, 1, value < old ? value : old)
KOPS_HOST_ATOMIC(Max, 1, value > old ? value : old)
KOPS_HOST_ATOMIC(And, 1, old &value)
KOPS_HOST_ATOMIC(Or, 1, old | value)
KOPS_HOST_ATOMIC(Xor, 1, old ^ value)
KOPS_HOST_ATOMIC(Exch, 0, value)
KOPS_HOST_ATOMIC(Inc, 1, old >= value ? 0 : old + 1)
KOPS_HOST_ATOMIC(Dec, 1, old == 0 || old > value ? value : old - 1)

#undef KOPS_HOST_ATOMIC

// Of vectors each number is added by itself.
KOPS_HOST float2 atomicAdd(float2 *address, float2 value)
{
    kops_host_atomic(address, sizeof *address, 1);
    return {atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y)};
}

KOPS_HOST float4 atomicAdd(float4 *address, float4 value)
{
    kops_host_atomic(address, sizeof *address, 1);
    return {atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y), atomicAdd(&address->z, value.z),
            atomicAdd(&address->w, value.w)};
}

template <typename T>
KOPS_HOST T atomicCAS(T *address, typename kops_host_same<T>::type compare, typename kops_host_same<T>::type value)
{
    T old = kops_host_fetch(address, 1);
    if (old == compare)
        kops_host_keep<T>(address, value);
    return old;
}

template <typename T>
KOPS_HOST T atomicCAS(volatile T *address, typename kops_host_same<T>::type compare,
                      typename kops_host_same<T>::type value)
{
    return atomicCAS(const_cast<T *>(address), compare, value);
}

template <typename T>
KOPS_HOST T atomicCAS_block(T *address, typename kops_host_same<T>::type compare,
                            typename kops_host_same<T>::type value)
{
    return atomicCAS(address, compare, value);
}

template <typename T>
KOPS_HOST T atomicCAS_system(T *address, typename kops_host_same<T>::type compare,
                             typename kops_host_same<T>::type value)
{
    return atomicCAS(address, compare, value);
}

// Loads and stores with a cache hint: plain ones here.

#define KOPS_HOST_LOAD(NAME)                                                                                           \
    template <typename T> KOPS_HOST T NAME(const T *address)                                                           \
    {                                                                                                                  \
        return *address;                                                                                               \
    }
#define KOPS_HOST_STORE(NAME)                                                                                          \
    template <typename T> KOPS_HOST void NAME(T *address, typename kops_host_same<T>::type value)                      \
    {                                                                                                                  \
        *address = value;                                                                                              \
    }

KOPS_HOST_LOAD(__ldg)
KOPS_HOST_LOAD(__ldca)
KOPS_HOST_LOAD(__ldcg)
KOPS_HOST_LOAD(__ldcs)
KOPS_HOST_LOAD(__ldcv)
KOPS_HOST_LOAD(__ldlu)
KOPS_HOST_STORE(__stwb)
KOPS_HOST_STORE(__stcg)
KOPS_HOST_STORE(__stcs)
KOPS_HOST_STORE(__stwt)

#undef KOPS_HOST_LOAD
#undef KOPS_HOST_STORE

KOPS_HOST size_t __cvta_generic_to_shared(const void *address)
{
    return size_t(address);
}

KOPS_HOST size_t __cvta_generic_to_global(const void *address)
{
    return size_t(address);
}

KOPS_HOST void __pipeline_memcpy_async(void *to, const void *from, size_t size, size_t zeros = 0, KOPS_HOST_PLACE)
{
    if ((size != 4 && size != 8 && size != 16) || zeros > size)
        kops_host_unsupported("__pipeline_memcpy_async copies 4, 8 or 16 bytes", kops_file, kops_line);
    if ((size_t(to) | size_t(from)) % size)
        kops_host_misaligned(size, kops_file, kops_line);
    kops_host_copy(to, from, size, zeros, nullptr);
}

KOPS_HOST void __pipeline_commit()
{
    kops_host_copies_commit();
}

KOPS_HOST void __pipeline_wait_prior(size_t prior)
{
    kops_host_copies_wait(unsigned(prior));
}

#endif

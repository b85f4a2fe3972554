// Loads and stores with a cache hint: plain ones here.
#ifndef KOPS_HOST_MEMORY_H
#define KOPS_HOST_MEMORY_H

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

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

// Copies that run beside the thread on the device are done at once here.
KOPS_HOST void __pipeline_memcpy_async(void *to, const void *from, size_t size, size_t zeros = 0)
{
    for (size_t i = 0; i < size - zeros; i++)
        static_cast<char *>(to)[i] = static_cast<const char *>(from)[i];
    for (size_t i = size - zeros; i < size; i++)
        static_cast<char *>(to)[i] = 0;
}

KOPS_HOST void __pipeline_commit()
{
}

KOPS_HOST void __pipeline_wait_prior(size_t)
{
}

#endif

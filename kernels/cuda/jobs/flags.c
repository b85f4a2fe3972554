#include "flags.h"

enum { LINE_BYTES = 64 };

bool cuda_flags_are_supported(const struct cuda_device *d)
{
    return CUDA_HAS(StreamBatchMemOp) && cuda_device_attribute(d, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
}

int cuda_flags_open(struct cuda_device *d, struct cuda_flags *flags, struct error *e)
{
    void *host;

    flags->host = NULL;
    flags->n_free = 0;
    if (!cuda_flags_are_supported(d))
        return 0;
    if (cuda_host_alloc(d, (size_t)CUDA_FLAGS_MAX * LINE_BYTES, &host, &flags->on_device, e) < 0)
        return -1;
    flags->host = host;
    for (unsigned i = CUDA_FLAGS_MAX; i-- > 0;)
        flags->free[flags->n_free++] = (uint16_t)i;
    return 0;
}

void cuda_flags_close(struct cuda_device *d, struct cuda_flags *flags)
{
    cuda_host_free(d, flags->host);
    flags->host = NULL;
}

atomic_ullong *cuda_flag_take(struct cuda_flags *flags, CUdeviceptr *ret_address)
{
    size_t offset;
    atomic_ullong *flag;

    if (flags->n_free == 0)
        return NULL;
    offset = (size_t)flags->free[--flags->n_free] * LINE_BYTES;
    flag = (atomic_ullong *)(void *)(flags->host + offset);
    atomic_store(&flag[0], 0);
    atomic_store(&flag[1], 0);
    *ret_address = flags->on_device + offset;
    return flag;
}

unsigned cuda_flag_number(const struct cuda_flags *flags, const atomic_ullong *flag)
{
    return (unsigned)((size_t)((const unsigned char *)flag - flags->host) / LINE_BYTES);
}

atomic_ullong *cuda_flag_go(const struct cuda_flags *flags, unsigned number, CUdeviceptr *ret_address)
{
    const size_t offset = (size_t)number * LINE_BYTES + sizeof(atomic_ullong);

    *ret_address = flags->on_device + offset;
    return (atomic_ullong *)(void *)(flags->host + offset);
}

void cuda_flag_give(struct cuda_flags *flags, atomic_ullong *flag)
{
    if (flag)
        flags->free[flags->n_free++] = (uint16_t)cuda_flag_number(flags, flag);
}

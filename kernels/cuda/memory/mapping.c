/* Owns the records of mappings. */
#include "mapping.h"

#include <stdlib.h>

struct cuda_memory *cuda_memory_new(struct cuda_device *d, enum backend_memory_kind kind, uint64_t address,
                                    uint64_t size, bool writable, struct error *e)
{
    struct cuda_memory *m = calloc(1, sizeof(*m));

    if (!m) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping's record");
        return NULL;
    }
    m->base.kind = kind;
    m->base.address = address;
    m->base.size = size;
    m->base.writable = writable;
    m->base.device = &d->base;
    return m;
}

int cuda_memory_refused(struct cuda_device *d, CUresult r, const char *call, const char *why, struct error *e)
{
    if (r == CUDA_ERROR_OUT_OF_MEMORY || (r != CUDA_ERROR_UNKNOWN && cuda_result_is_sticky(r)))
        return cuda_fail(d, r, call, e);
    if (r == CUDA_ERROR_NOT_SUPPORTED || r == CUDA_ERROR_NOT_PERMITTED)
        error_set(e, ERROR_UNSUPPORTED, "this machine's driver does not share such memory between processes");
    else
        error_set(e, ERROR_INVALID_HANDLE, "%s", why);
    return error_detail_text(e, "driver", cuda_result_name(r));
}

int cuda_memory_too_small(uint64_t needed, uint64_t size, struct error *e)
{
    error_set(e, ERROR_OUT_OF_BOUNDS, "the memory behind the handle is smaller than declared");
    error_detail_number(e, "needed", (int64_t)needed);
    return error_detail_number(e, "size", (int64_t)size);
}

int cuda_memory_check(struct cuda_device *d, CUdeviceptr address, uint64_t declared, uint64_t *ret_size,
                      struct error *e)
{
    CUdeviceptr base;
    size_t bytes;
    uint64_t usable;
    int ordinal;

    if (CUDA_CALL(d, e, PointerGetAttribute, &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) < 0)
        return -1;
    if (ordinal != d->ordinal)
        return error_set(e, ERROR_INVALID_HANDLE, "the handle is of another GPU than %s; say its own device",
                         d->base.info.uuid);
    if (CUDA_CALL(d, e, MemGetAddressRange, &base, &bytes, address) < 0)
        return -1;
    usable = bytes - (uint64_t)(address - base);
    if (declared > usable)
        return cuda_memory_too_small(declared, usable, e);
    *ret_size = usable;
    return 0;
}

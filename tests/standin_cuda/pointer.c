/* What a pointer is: cuPointerGetAttribute(s). */
#include <string.h>

#include "pool.h"

#define PUT(type, value)                                                                                               \
    do {                                                                                                               \
        type put = (value);                                                                                            \
        memcpy(data, &put, sizeof(put));                                                                               \
    } while (0)

static CUresult attribute_get(void *data, CUpointer_attribute attribute, const struct region *region, uint64_t address)
{
    bool host = region->kind == REGION_HOST;

    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        PUT(CUcontext, region->kind == REGION_VMM || region->pool ? NULL : region->context->handle);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        PUT(unsigned, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        PUT(CUdeviceptr, address);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!host)
            return CUDA_ERROR_INVALID_VALUE;
        PUT(uint64_t, address);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        PUT(int, 0);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        PUT(uint64_t, region->buffer_id);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        PUT(int, region->device);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        PUT(int, region->kind == REGION_ALLOCATION);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        PUT(CUdeviceptr, region->address);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        PUT(size_t, region->size);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        PUT(int, 1);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        PUT(uint64_t, region->vmm ? vmm_handle_types(region->vmm) : region->pool ? region->pool->handle_types : 0);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        PUT(CUmemoryPool, region->pool && !region->pool->destroyed ? region->pool->handle : NULL);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

API cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    const struct region *region;

    ENTER(enter("cuPointerGetAttribute"));
    region = region_find(address);
    if (!data || !region)
        return leave(CUDA_ERROR_INVALID_VALUE);
    return leave(attribute_get(data, attribute, region, address));
}

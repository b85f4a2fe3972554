/* Several devices: which of them touches what of another's memory.
 *
 * cuMemAlloc's memory is open to contexts of its own device, IPC mappings to the context that
 * opened them, VMM maps and pools to the devices that were named. KOPS_STANDIN_NO_PEER=1: no device reaches another. */
#include <stdlib.h>

#include "pool.h"

bool devices_are_peers(int device, int other)
{
    const char *none = getenv("KOPS_STANDIN_NO_PEER");

    return device != other && !(none && *none == '1');
}

bool region_allows(const struct region *region, const struct context *context, bool write, bool copies)
{
    uint32_t bit = 1U << context->device;
    bool own = region->device == context->device;

    if (region->kind == REGION_VMM)
        return ((write ? region->writers : region->readers) & bit) != 0;
    if (region->pool)
        return ((write ? region->pool->writers : region->pool->readers) & bit) != 0;
    if (!region->readable || (write && !region->writable))
        return false;
    if (region->kind == REGION_IPC) /* whatever peers were enabled */
        return region->context == context || copies;
    return own || region->kind == REGION_HOST || copies;
}

API cuDeviceCanAccessPeer(int *ret_can, CUdevice device, CUdevice peer)
{
    ENTER(enter("cuDeviceCanAccessPeer"));
    if (!device_is_valid(device) || !device_is_valid(peer))
        return leave(CUDA_ERROR_INVALID_DEVICE);
    if (!ret_can)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_can = devices_are_peers(device, peer);
    return leave(CUDA_SUCCESS);
}

/* Several devices: which of them touches what of another's memory.
 *
 * cuMemAlloc's memory is open to the contexts that enabled access to its device, IPC mappings to the context that
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
    return own || region->kind == REGION_HOST || (context->peers >> region->device & 1) || copies;
}

API cuDeviceCanAccessPeer(int *ret_can, CUdevice device, CUdevice peer)
{
    CUresult r = enter("cuDeviceCanAccessPeer");

    if (r != CUDA_SUCCESS)
        return r;
    if (!device_is_valid(device) || !device_is_valid(peer))
        return leave(CUDA_ERROR_INVALID_DEVICE);
    if (!ret_can)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_can = devices_are_peers(device, peer);
    return leave(CUDA_SUCCESS);
}

API cuDeviceGetP2PAttribute(int *ret_value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer)
{
    CUresult r = enter("cuDeviceGetP2PAttribute");

    if (r != CUDA_SUCCESS)
        return r;
    if (!device_is_valid(device) || !device_is_valid(peer) || device == peer)
        return leave(CUDA_ERROR_INVALID_DEVICE);
    if (!ret_value || (unsigned)attribute < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK || (unsigned)attribute > 5)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED && devices_are_peers(device, peer);
    return leave(CUDA_SUCCESS);
}

/* The current context and the device of the other, which must be another. */
static CUresult enter_peer(const char *name, CUcontext handle, struct context **ret_context, int *ret_device)
{
    CUresult r = enter_context(name, ret_context);
    struct context *peer;

    if (r != CUDA_SUCCESS)
        return r;
    peer = context_get(handle);
    if (!peer)
        return leave(CUDA_ERROR_INVALID_CONTEXT);
    if (peer->device == (*ret_context)->device)
        return leave(CUDA_ERROR_INVALID_DEVICE);
    *ret_device = peer->device;
    return CUDA_SUCCESS;
}

API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    struct context *context;
    int device;
    CUresult r = enter_peer("cuCtxEnablePeerAccess", peer, &context, &device);

    if (r != CUDA_SUCCESS)
        return r;
    if (flags)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!devices_are_peers(context->device, device))
        return leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    if (context->peers >> device & 1)
        return leave(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    context->peers |= 1U << device;
    return leave(CUDA_SUCCESS);
}

API cuCtxDisablePeerAccess(CUcontext peer)
{
    struct context *context;
    int device;
    CUresult r = enter_peer("cuCtxDisablePeerAccess", peer, &context, &device);

    if (r != CUDA_SUCCESS)
        return r;
    if (!(context->peers >> device & 1))
        return leave(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    context->peers &= ~(1U << device);
    return leave(CUDA_SUCCESS);
}

/* Copies need no access of their own: copy engines have it. The contexts tell which devices the addresses are of. */
API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size,
                      CUstream stream)
{
    CUresult r = enter("cuMemcpyPeerAsync");
    const struct context *there, *here;
    const struct region *target, *source;

    if (r != CUDA_SUCCESS)
        return r;
    there = context_get(to_context);
    here = context_get(from_context);
    if (!there || !here)
        return leave(CUDA_ERROR_INVALID_CONTEXT);
    target = region_find(to);
    source = region_find(from);
    if (!target || !source || target->device != there->device || source->device != here->device)
        return leave(CUDA_ERROR_INVALID_VALUE);
    leave(CUDA_SUCCESS);
    return cuMemcpyDtoDAsync_v2(to, from, size, stream);
}

API cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size)
{
    CUresult r = cuMemcpyPeerAsync(to, to_context, from, from_context, size, NULL);

    return r == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : r;
}

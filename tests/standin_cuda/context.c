/* Contexts: each thread's stack of current ones, the devices' primary ones, and what a sticky fault does to them. */
#include <stdio.h>
#include <stdlib.h>

#include "standin.h"

enum { STACK_MAX = 32 };

static _Thread_local CUcontext stack[STACK_MAX];
static _Thread_local unsigned depth;

CUresult context_current(struct context **ret_context)
{
    struct context *context;

    if (!depth || !stack[depth - 1])
        return CUDA_ERROR_INVALID_CONTEXT;
    context = handle_get(HANDLE_CONTEXT, stack[depth - 1]);
    if (!context)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *ret_context = context;
    return CUDA_SUCCESS;
}

struct context *context_any(int device)
{
    return standin_devices[device].primary;
}

void context_break(struct context *context, CUresult error)
{
    if (context->broken)
        return;
    context->error = error;
    context->broken = true;
    count(STANDIN_COUNTER_sticky, 1);
    fprintf(stderr, "cuda_standin: the context of device %d is broken (error %d)\n", context->device, (int)error);
    pthread_cond_broadcast(&standin_progress);
}

static CUresult context_new(int device, struct context **ret_context)
{
    struct context *context;

    context = calloc(1, sizeof(*context));
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->device = device;
    context->handle = handle_new(HANDLE_CONTEXT, context);
    count(STANDIN_COUNTER_live_contexts, 1);
    count(STANDIN_COUNTER_contexts, 1);
    *ret_context = context;
    return CUDA_SUCCESS;
}

/* The handle dies; the struct stays, since streams and regions of a careless program still point at it. */
static void context_end(struct context *context)
{
    streams_wait_context(context);
    if (context->default_stream)
        stream_end(context->default_stream);
    context->default_stream = NULL;
    handle_free(context->handle);
    count(STANDIN_COUNTER_live_contexts, -1);
}

API cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device)
{
    CUresult r = CUDA_SUCCESS;
    struct device *d;

    ENTER(enter_device("cuDevicePrimaryCtxRetain", device));
    gate_pass_call(STANDIN_GATE_context);
    d = &standin_devices[device];
    if (!d->primary)
        r = context_new(device, &d->primary);
    if (r != CUDA_SUCCESS)
        return leave(r);
    d->retained++;
    *ret_context = d->primary->handle;
    return leave(CUDA_SUCCESS);
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    struct device *d;

    ENTER(enter_device("cuDevicePrimaryCtxRelease", device));
    d = &standin_devices[device];
    gate_pass_call(STANDIN_GATE_context_end);
    if (!d->retained)
        return leave(misuse(CUDA_ERROR_INVALID_CONTEXT, "the primary context of device %d is not retained", device));
    d->retained--;
    /* A broken one cannot be replaced in this process. */
    if (!d->retained && !d->primary->broken) {
        context_end(d->primary);
        d->primary = NULL;
    }
    return leave(CUDA_SUCCESS);
}
#undef cuDevicePrimaryCtxRelease
API_ALIAS(cuDevicePrimaryCtxRelease_v2) CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device);

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *ret_flags, int *ret_active)
{
    ENTER(enter_device("cuDevicePrimaryCtxGetState", device));
    *ret_flags = 0;
    *ret_active = standin_devices[device].primary != NULL;
    return leave(CUDA_SUCCESS);
}

API cuCtxSetCurrent(CUcontext handle)
{
    ENTER(enter("cuCtxSetCurrent"));
    if (handle && !handle_get(HANDLE_CONTEXT, handle))
        return leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!depth)
        depth = 1;
    stack[depth - 1] = handle;
    return leave(CUDA_SUCCESS);
}

API cuCtxPushCurrent_v2(CUcontext handle)
{
    ENTER(enter("cuCtxPushCurrent"));
    if (!handle_get(HANDLE_CONTEXT, handle))
        return leave(CUDA_ERROR_INVALID_CONTEXT);
    if (depth == STACK_MAX)
        return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%u contexts were pushed and not popped", depth));
    stack[depth++] = handle;
    return leave(CUDA_SUCCESS);
}

API cuCtxPopCurrent_v2(CUcontext *ret_handle)
{
    ENTER(enter("cuCtxPopCurrent"));
    if (!depth)
        return leave(misuse(CUDA_ERROR_INVALID_CONTEXT, "no context is current"));
    depth--;
    if (ret_handle)
        *ret_handle = stack[depth];
    return leave(CUDA_SUCCESS);
}

API cuCtxGetCurrent(CUcontext *ret_handle)
{
    ENTER(enter("cuCtxGetCurrent"));
    *ret_handle = depth ? stack[depth - 1] : NULL;
    return leave(CUDA_SUCCESS);
}

API cuCtxGetDevice(CUdevice *ret_device)
{
    CUresult r;
    struct context *context;

    ENTER(enter("cuCtxGetDevice"));
    r = context_current(&context);
    if (r == CUDA_SUCCESS)
        *ret_device = context->device;
    return leave(r);
}

API cuCtxSynchronize(void)
{
    struct context *context;

    ENTER(enter_context("cuCtxSynchronize", &context));
    return leave(streams_wait_context(context));
}

API cuCtxGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
    ENTER(enter_context("cuCtxGetStreamPriorityRange", NULL));
    if (ret_least)
        *ret_least = PRIORITY_LEAST;
    if (ret_greatest)
        *ret_greatest = PRIORITY_GREATEST;
    return leave(CUDA_SUCCESS);
}

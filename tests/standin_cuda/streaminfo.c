/* What a stream is: its id, context, device, flags and priority. Any stream may be asked, whatever context is current.
 */
#include "standin.h"

CUresult enter_stream_any(const char *name, CUstream handle, struct stream **ret_stream)
{
    CUresult r;

    if ((uint64_t)(uintptr_t)handle <= 2) /* the current context's default stream */
        return enter_stream(name, handle, ret_stream);
    r = enter(name);
    if (r != CUDA_SUCCESS)
        return r;
    *ret_stream = handle_get(HANDLE_STREAM, handle);
    if (!*ret_stream)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    return (*ret_stream)->context->broken ? leave((*ret_stream)->context->error) : CUDA_SUCCESS;
}

API cuStreamGetId(CUstream handle, unsigned long long *ret_id)
{
    struct stream *stream;
    CUresult r = enter_stream_any("cuStreamGetId", handle, &stream);

    if (r != CUDA_SUCCESS)
        return r;
    if (!ret_id)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_id = stream->id;
    return leave(CUDA_SUCCESS);
}

API cuStreamGetCtx(CUstream handle, CUcontext *ret_context)
{
    struct stream *stream;
    CUresult r = enter_stream_any("cuStreamGetCtx", handle, &stream);

    if (r != CUDA_SUCCESS)
        return r;
    if (!ret_context)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_context = stream->context->handle;
    return leave(CUDA_SUCCESS);
}

API cuStreamGetCtx_v2(CUstream handle, CUcontext *ret_context, CUgreenCtx *ret_green)
{
    if (ret_green)
        *ret_green = NULL; /* there are none here */
    return cuStreamGetCtx(handle, ret_context);
}

API cuStreamGetDevice(CUstream handle, CUdevice *ret_device)
{
    struct stream *stream;
    CUresult r = enter_stream_any("cuStreamGetDevice", handle, &stream);

    if (r != CUDA_SUCCESS)
        return r;
    if (!ret_device)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_device = stream->context->device;
    return leave(CUDA_SUCCESS);
}

API cuStreamGetFlags(CUstream handle, unsigned *ret_flags)
{
    struct stream *stream;
    CUresult r = enter_stream_any("cuStreamGetFlags", handle, &stream);

    if (r != CUDA_SUCCESS)
        return r;
    if (!ret_flags)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_flags = stream->flags;
    return leave(CUDA_SUCCESS);
}

API cuStreamGetPriority(CUstream handle, int *ret_priority)
{
    struct stream *stream;
    CUresult r = enter_stream_any("cuStreamGetPriority", handle, &stream);

    if (r != CUDA_SUCCESS)
        return r;
    if (!ret_priority)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_priority = stream->priority;
    return leave(CUDA_SUCCESS);
}

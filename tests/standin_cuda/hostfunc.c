/* Functions of the host in a stream's order. As on a real device they may call nothing of CUDA. */
#include "standin.h"

API cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
    struct stream *stream;
    CUresult r = enter_stream("cuLaunchHostFunc", handle, &stream);
    struct op *op;

    if (r != CUDA_SUCCESS)
        return r;
    if (!function)
        return leave(CUDA_ERROR_INVALID_VALUE);
    op = op_new(OP_HOST);
    if (!op)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    op->host.function = function;
    op->host.data = data;
    return leave(stream_enqueue(stream, op));
}

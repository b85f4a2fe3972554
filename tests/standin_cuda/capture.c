/* Stream capture: what a stream that is being captured does instead of working, and which calls are
 * refused meanwhile. A refused call invalidates the captures that it stood against, as a real driver's do. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

static struct capture *captures;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- what is refused ---- */

/* Calls that may touch more than their own: a capture of global or thread-local mode does not suffer them. */
static bool is_unsafe(const char *name)
{
    static const char *const names[] = {
        "cuMemAlloc",        "cuMemFree",           "cuMemHostAlloc",     "cuMemAllocHost",      "cuMemFreeHost",
        "cuMemHostRegister", "cuMemHostUnregister", "cuMemcpy",           "cuMemcpyHtoD",        "cuMemcpyDtoH",
        "cuMemcpyDtoD",      "cuMemcpyPeer",        "cuMemsetD8",         "cuMemsetD16",         "cuMemsetD32",
        "cuEventQuery",      "cuEventSynchronize",  "cuIpcOpenMemHandle", "cuIpcCloseMemHandle", "cuModuleUnload"};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static bool stands_against(const struct capture *c)
{
    if (c->mode == CU_STREAM_CAPTURE_MODE_RELAXED || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    if (pthread_equal(c->thread, pthread_self()))
        return true;
    return c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult capture_check_call(const char *name, const struct context *context)
{
    CUresult r = CUDA_SUCCESS;
    bool all = captures && strcmp(name, "cuCtxSynchronize") == 0;

    if (!captures || (!all && !is_unsafe(name)))
        return CUDA_SUCCESS;
    for (struct capture *c = captures; c; c = c->next)
        if (all ? c->stream->context == context : stands_against(c)) {
            c->invalid = true;
            r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return r;
}

/* The default stream would wait for blocking streams, one of which is being captured. */
static CUresult check_implicit(const struct stream *stream)
{
    CUresult r = CUDA_SUCCESS;

    if (stream != stream->context->default_stream)
        return CUDA_SUCCESS;
    for (struct capture *c = captures; c; c = c->next)
        if (c->stream->context == stream->context && !(c->stream->flags & CU_STREAM_NON_BLOCKING)) {
            c->invalid = true;
            r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return r;
}

CUresult capture_check_wait(struct stream *stream)
{
    if (!stream->capture)
        return captures ? check_implicit(stream) : CUDA_SUCCESS;
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_refuse(struct stream *stream)
{
    stream->capture->invalid = true;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- what is recorded ---- */

CUresult capture_enqueue(struct stream *stream, struct op *op, bool *ret_taken)
{
    CUresult r;

    *ret_taken = true;
    if (!stream->capture) {
        r = captures ? check_implicit(stream) : CUDA_SUCCESS;
        if (r == CUDA_SUCCESS)
            *ret_taken = false;
        else
            free(op);
        return r;
    }
    if (stream->capture->invalid) {
        free(op);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    return graph_add(stream->capture->graph, op) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_record_event(struct stream *stream, struct event *event)
{
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->captured = true;
    return CUDA_SUCCESS;
}

/* ---- beginning and ending ---- */

/* The stream leaves it, and it is gone. The graph stays the caller's. */
static void capture_end(struct capture *capture)
{
    struct capture **link = &captures;

    capture->stream->capture = NULL;
    stream_unref(capture->stream);
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    free(capture);
    count(STANDIN_COUNTER_live_captures, -1);
}

void capture_stream_destroyed(struct stream *stream)
{
    struct graph *graph = stream->capture->graph;

    capture_end(stream->capture);
    graph_free(graph);
}

static CUresult begin(struct stream *stream, CUstreamCaptureMode mode)
{
    struct capture *capture;

    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (stream == stream->context->default_stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    capture = calloc(1, sizeof(*capture));
    if (!capture)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *capture = (struct capture){.mode = mode, .thread = pthread_self(), .stream = stream};
    capture->graph = calloc(1, sizeof(*capture->graph));
    if (!capture->graph) {
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->capture = capture;
    stream->references++;
    capture->next = captures;
    captures = capture;
    count(STANDIN_COUNTER_live_captures, 1);
    return CUDA_SUCCESS;
}

API cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    struct stream *stream;
    CUresult r = enter_stream("cuStreamBeginCapture", handle, &stream);

    return r == CUDA_SUCCESS ? leave(begin(stream, mode)) : r;
}

/* Before CUDA 10.1 there was no mode. */
CUresult CUDAAPI cuStreamBeginCapture_v1(CUstream handle) __asm__("cuStreamBeginCapture");

API cuStreamBeginCapture_v1(CUstream handle)
{
    return cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static CUresult end(struct stream *stream, CUgraph *ret_graph)
{
    struct capture *capture = stream->capture;
    struct graph *graph;
    CUresult r = CUDA_SUCCESS;

    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    graph = capture->graph;
    if (capture->invalid)
        r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    capture_end(capture);
    if (r == CUDA_SUCCESS)
        r = graph_publish(graph);
    if (r == CUDA_SUCCESS)
        *ret_graph = graph->handle;
    else
        graph_free(graph);
    return r;
}

API cuStreamEndCapture(CUstream handle, CUgraph *ret_graph)
{
    struct stream *stream;

    ENTER(enter_stream("cuStreamEndCapture", handle, &stream));
    if (!ret_graph)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_graph = NULL;
    return leave(end(stream, ret_graph));
}

API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode old = thread_mode;

    ENTER(enter("cuThreadExchangeStreamCaptureMode"));
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return leave(CUDA_ERROR_INVALID_VALUE);
    thread_mode = *mode;
    *mode = old;
    return leave(CUDA_SUCCESS);
}

static CUstreamCaptureStatus status_of(const struct stream *stream)
{
    if (!stream->capture)
        return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *ret_status)
{
    struct stream *stream;

    ENTER(enter_stream_any("cuStreamIsCapturing", handle, &stream));
    if (!ret_status)
        return leave(CUDA_ERROR_INVALID_VALUE);
    for (const struct capture *c = captures; c && stream == stream->context->default_stream; c = c->next)
        if (c->stream->context == stream->context && !(c->stream->flags & CU_STREAM_NON_BLOCKING))
            return leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT); /* says so, and does no harm */
    *ret_status = status_of(stream);
    return leave(CUDA_SUCCESS);
}

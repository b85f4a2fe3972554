/* Stream capture: what streams that are being captured do instead of working, how others join them, and which calls are
 * refused meanwhile. A refused call invalidates the captures that it stood against, as a real driver's do. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

static struct capture *captures;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* NULL when it has ended. */
static struct capture *capture_by_id(uint64_t id)
{
    for (struct capture *c = captures; c; c = c->next)
        if (c->id == id)
            return c;
    return NULL;
}

static void capture_invalidate(struct capture *capture)
{
    capture->invalid = true;
}

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
        if (all ? c->origin->context == context : stands_against(c)) {
            capture_invalidate(c);
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
        if (c->origin->context == stream->context && !(c->origin->flags & CU_STREAM_NON_BLOCKING)) {
            capture_invalidate(c);
            r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return r;
}

CUresult capture_check_wait(struct stream *stream)
{
    if (!stream->capture)
        return captures ? check_implicit(stream) : CUDA_SUCCESS;
    capture_invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_refuse(struct stream *stream)
{
    capture_invalidate(stream->capture);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- what is recorded ---- */

CUresult capture_enqueue(struct stream *stream, struct op *op, bool *ret_taken)
{
    struct node *node;
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
    node = graph_add(stream->capture->graph, op, stream->tips);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    tips_clear(stream->tips);
    return tips_add(stream->tips, node) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_record_event(struct stream *stream, struct event *event)
{
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!event->tips)
        event->tips = calloc(1, sizeof(*event->tips));
    if (!event->tips)
        return CUDA_ERROR_OUT_OF_MEMORY;
    tips_clear(event->tips);
    event->captured_by = stream->capture->id;
    return tips_add_all(event->tips, stream->tips) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool join(struct stream *stream, struct capture *capture)
{
    stream->tips = calloc(1, sizeof(*stream->tips));
    if (!stream->tips)
        return false;
    stream->capture = capture;
    stream->references++;
    return true;
}

CUresult capture_wait_event(struct stream *stream, struct event *event)
{
    struct capture *theirs = event->captured_by ? capture_by_id(event->captured_by) : NULL;

    if (stream->capture && stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture && !event->captured_by) {
        capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (!theirs)
        return CUDA_ERROR_CAPTURED_EVENT; /* of a capture that has ended */
    if (theirs->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != theirs) {
        capture_invalidate(stream->capture);
        capture_invalidate(theirs);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream == stream->context->default_stream) {
        capture_invalidate(theirs);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (!stream->capture && !join(stream, theirs))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return tips_add_all(stream->tips, event->tips) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void capture_event_clear(struct event *event)
{
    if (event->tips)
        tips_clear(event->tips);
    free(event->tips);
    event->tips = NULL;
    event->captured_by = 0;
}

/* ---- beginning and ending ---- */

static void leave_capture(struct stream *stream)
{
    tips_clear(stream->tips);
    free(stream->tips);
    stream->tips = NULL;
    stream->capture = NULL;
    stream_unref(stream);
}

/* Every stream leaves it, and it is gone. The graph stays the caller's. */
static void capture_end(struct capture *capture)
{
    struct capture **link = &captures;
    struct stream *stream;

    while ((stream = stream_find_captured(capture)))
        leave_capture(stream);
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    free(capture);
    count(STANDIN_COUNTER_live_captures, -1);
}

void capture_stream_destroyed(struct stream *stream)
{
    struct capture *capture = stream->capture;
    struct graph *graph = capture->graph;

    capture_invalidate(capture);
    if (capture->origin != stream) {
        leave_capture(stream);
        return;
    }
    capture_end(capture);
    graph_free(graph);
}

/* Whether all that was recorded comes before what the origin waits for. */
static bool is_joined(const struct graph *graph, const struct tips *tips)
{
    for (size_t i = 0; i < graph->n; i++)
        graph->nodes[i]->marked = false;
    for (size_t i = 0; i < tips->n; i++)
        tips->nodes[i]->marked = true;
    for (size_t i = graph->n; i-- > 0;) { /* a node is younger than those it depends on */
        if (!graph->nodes[i]->marked)
            return false;
        for (size_t k = 0; k < graph->nodes[i]->after.n; k++)
            graph->nodes[i]->after.nodes[k]->marked = true;
    }
    return true;
}

static CUresult begin(struct stream *stream, CUstreamCaptureMode mode)
{
    static uint64_t last_id;
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
    *capture = (struct capture){.id = ++last_id, .mode = mode, .thread = pthread_self(), .origin = stream};
    capture->graph = graph_new();
    if (!capture->graph || !join(stream, capture)) {
        free(capture->graph);
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
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
    if (capture->origin != stream) {
        capture_invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    graph = capture->graph;
    if (capture->invalid)
        r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!is_joined(graph, stream->tips))
        r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
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
    CUresult r = enter_stream("cuStreamEndCapture", handle, &stream);

    if (r != CUDA_SUCCESS)
        return r;
    if (!ret_graph)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_graph = NULL;
    return leave(end(stream, ret_graph));
}

API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUresult r = enter("cuThreadExchangeStreamCaptureMode");
    CUstreamCaptureMode old = thread_mode;

    if (r != CUDA_SUCCESS)
        return r;
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
    CUresult r = enter_stream_any("cuStreamIsCapturing", handle, &stream);

    if (r != CUDA_SUCCESS)
        return r;
    if (!ret_status)
        return leave(CUDA_ERROR_INVALID_VALUE);
    for (const struct capture *c = captures; c && stream == stream->context->default_stream; c = c->next)
        if (c->origin->context == stream->context && !(c->origin->flags & CU_STREAM_NON_BLOCKING))
            return leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT); /* says so, and does no harm */
    *ret_status = status_of(stream);
    return leave(CUDA_SUCCESS);
}

API cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *ret_status, cuuint64_t *ret_id,
                              CUgraph *ret_graph, const CUgraphNode **ret_nodes, const CUgraphEdgeData **ret_edges,
                              size_t *ret_count)
{
    struct stream *stream;
    CUresult r = enter_stream_any("cuStreamGetCaptureInfo", handle, &stream);

    if (r != CUDA_SUCCESS)
        return r;
    if (!ret_status)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (ret_graph || ret_nodes || ret_edges || ret_count)
        return leave(CUDA_ERROR_NOT_SUPPORTED); /* a graph in the making has no handle here */
    *ret_status = status_of(stream);
    if (ret_id && stream->capture)
        *ret_id = stream->capture->id;
    return leave(CUDA_SUCCESS);
}

/* Stream captures, the graphs that they make, and what is instantiated of those. Everything under the one mutex.
 *
 * A stream that is being captured does not work. Calls that are refused meanwhile invalidate the captures that they
 * stood against, as a real driver's do. A node holds an operation as streams queue it, with a copy of its parameters; a
 * launch queues copies of them all in the order in which they were captured. */
#include <stdlib.h>
#include <string.h>

#include "standin.h"

struct node {
    CUgraphNode handle;
    struct op *op;
};

struct graph {
    CUgraph handle; /* NULL while it is being captured */
    struct node **nodes;
    size_t n;
};

struct capture {
    struct capture *next;
    CUstreamCaptureMode mode;
    pthread_t thread;
    struct stream *stream; /* a reference */
    struct graph *graph;
    bool invalid;
};

/* ---- graphs and their nodes ---- */

static CUresult graph_publish(struct graph *graph)
{
    graph->handle = handle_new(HANDLE_GRAPH, graph);
    if (!graph->handle)
        return CUDA_ERROR_OUT_OF_MEMORY;
    count(STANDIN_COUNTER_live_graphs, 1);
    return CUDA_SUCCESS;
}

static void graph_free(struct graph *graph)
{
    for (size_t i = 0; i < graph->n; i++) {
        handle_free(graph->nodes[i]->handle);
        free(graph->nodes[i]->op);
        free(graph->nodes[i]);
    }
    if (graph->handle) {
        handle_free(graph->handle);
        count(STANDIN_COUNTER_live_graphs, -1);
    }
    free(graph->nodes);
    free(graph);
}

static bool graph_add(struct graph *graph, struct op *op)
{
    struct node **grown = realloc(graph->nodes, (graph->n + 1) * sizeof(struct node *));
    struct node *node = calloc(1, sizeof(*node));

    if (grown)
        graph->nodes = grown;
    if (grown && node)
        node->handle = handle_new(HANDLE_NODE, node);
    if (!grown || !node || !node->handle) {
        free(node);
        free(op);
        return false;
    }
    node->op = op;
    graph->nodes[graph->n++] = node;
    return true;
}

static struct graph *graph_get(CUgraph handle)
{
    return handle_get(HANDLE_GRAPH, handle);
}

static CUgraphNodeType node_type(const struct node *node)
{
    switch (node->op->kind) {
    case OP_KERNEL:
        return CU_GRAPH_NODE_TYPE_KERNEL;
    case OP_COPY:
        return CU_GRAPH_NODE_TYPE_MEMCPY;
    case OP_FILL:
        return CU_GRAPH_NODE_TYPE_MEMSET;
    case OP_HOST:
        return CU_GRAPH_NODE_TYPE_HOST;
    default:
        return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    }
}

API cuGraphDestroy(CUgraph handle)
{
    struct graph *graph;

    ENTER(enter("cuGraphDestroy"));
    graph = graph_get(handle);
    if (!graph)
        return leave(CUDA_ERROR_INVALID_VALUE);
    graph_free(graph);
    return leave(CUDA_SUCCESS);
}

/* As many handles as *ret_count has room for; without an array only how many there are. */
API cuGraphGetNodes(CUgraph handle, CUgraphNode *ret_nodes, size_t *ret_count)
{
    struct graph *graph;

    ENTER(enter("cuGraphGetNodes"));
    graph = graph_get(handle);
    if (!graph || !ret_count)
        return leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; ret_nodes && i < *ret_count; i++)
        ret_nodes[i] = i < graph->n ? graph->nodes[i]->handle : NULL;
    if (!ret_nodes || *ret_count > graph->n)
        *ret_count = graph->n;
    return leave(CUDA_SUCCESS);
}

static CUresult enter_node(const char *name, CUgraphNode handle, struct node **ret_node)
{
    ENTER(enter(name));
    *ret_node = handle_get(HANDLE_NODE, handle);
    return *ret_node ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

API cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *ret_type)
{
    struct node *node;

    ENTER(enter_node("cuGraphNodeGetType", handle, &node));
    if (!ret_type)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_type = node_type(node);
    return leave(CUDA_SUCCESS);
}

API cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *ret_params)
{
    struct node *node;

    ENTER(enter_node("cuGraphKernelNodeGetParams", handle, &node));
    if (!ret_params || node_type(node) != CU_GRAPH_NODE_TYPE_KERNEL)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_params = node->op->launch.given;
    ret_params->kernelParams = node->op->launch.pointers; /* as a real driver's: the node's own, while it lives */
    node->op->launch.pointers[0] = node->op->launch.params;
    return leave(CUDA_SUCCESS);
}

/* ---- captures ---- */

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

/* ---- instantiated graphs: launches of one do not overlap, as with a real driver ---- */

struct exec {
    CUgraphExec handle;
    struct context *context;
    struct op **ops;
    size_t n;
    struct stream *last; /* where it was launched last; a reference */
};

static struct op *op_copy(const struct op *op)
{
    struct op *copy = malloc(sizeof(*copy));

    if (copy) {
        *copy = *op;
        copy->next = NULL;
    }
    return copy;
}

static void exec_free(struct exec *exec)
{
    for (size_t i = 0; i < exec->n; i++)
        free(exec->ops[i]);
    free(exec->ops);
    if (exec->last)
        stream_unref(exec->last);
    free(exec);
}

API cuGraphInstantiateWithFlags(CUgraphExec *ret_exec, CUgraph handle, unsigned long long flags)
{
    struct context *context;
    struct graph *graph;
    struct exec *exec;

    ENTER(enter_context("cuGraphInstantiate", &context));
    graph = graph_get(handle);
    if (!graph || !ret_exec || flags & ~15ULL)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
        return leave(CUDA_ERROR_NOT_SUPPORTED);
    exec = calloc(1, sizeof(*exec));
    if (!exec)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    exec->context = context;
    exec->ops = calloc(graph->n + 1, sizeof(struct op *));
    for (; exec->ops && exec->n < graph->n; exec->n++) {
        exec->ops[exec->n] = op_copy(graph->nodes[exec->n]->op);
        if (!exec->ops[exec->n])
            goto free_exec;
    }
    if (exec->ops)
        exec->handle = handle_new(HANDLE_EXEC, exec);
    if (!exec->handle)
        goto free_exec;
    count(STANDIN_COUNTER_live_graph_execs, 1);
    *ret_exec = exec->handle;
    return leave(CUDA_SUCCESS);

free_exec:
    exec_free(exec);
    return leave(CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult enter_exec(const char *name, CUgraphExec handle, struct context **ret_context, struct exec **ret_exec)
{
    ENTER(enter_context(name, ret_context));
    *ret_exec = handle_get(HANDLE_EXEC, handle);
    return *ret_exec ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

/* As a real driver: what was launched goes on to its end. */
API cuGraphExecDestroy(CUgraphExec handle)
{
    struct context *context;
    struct exec *exec;

    ENTER(enter_exec("cuGraphExecDestroy", handle, &context, &exec));
    handle_free(handle);
    exec_free(exec);
    count(STANDIN_COUNTER_live_graph_execs, -1);
    return leave(CUDA_SUCCESS);
}

/* Its index; exec->n: there is none. */
static size_t last_kernel(const struct exec *exec)
{
    for (size_t i = exec->n; i-- > 0;)
        if (exec->ops[i]->kind == OP_KERNEL)
            return i;
    return exec->n;
}

API cuGraphLaunch(CUgraphExec handle, CUstream stream_handle)
{
    struct context *context;
    struct exec *exec;
    CUresult r;
    struct stream *stream;
    uint32_t call = 0;
    size_t last;

    ENTER(enter_exec("cuGraphLaunch", handle, &context, &exec));
    r = stream_get(stream_handle, context, &stream);
    if (r == CUDA_SUCCESS && exec->context != context)
        r = misuse(CUDA_ERROR_INVALID_VALUE, "the graph was instantiated in another context");
    if (r != CUDA_SUCCESS)
        return leave(r);
    if (!stream->capture && exec->last && exec->last != stream)
        stream_order_after(stream, exec->last);
    last = last_kernel(exec);
    if (!stream->capture && standin_profiler && last < exec->n)
        call = standin_profiler->launching(STANDIN_LAUNCH_GRAPH);
    for (size_t i = 0; i < exec->n && r == CUDA_SUCCESS; i++) {
        struct op *op = op_copy(exec->ops[i]);

        if (op) {
            op->call = call;
            op->what = STANDIN_LAUNCH_GRAPH;
            op->last = i == last;
        }
        r = op ? stream_enqueue(stream, op) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r == CUDA_SUCCESS && !stream->capture) {
        count(STANDIN_COUNTER_graph_launches, 1);
        stream->references++;
        if (exec->last)
            stream_unref(exec->last);
        exec->last = stream;
    }
    return leave(r);
}

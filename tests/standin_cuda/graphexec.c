/* Instantiated graphs: a copy of every node's operation, which a launch queues on a stream.
 *
 * Launches of one do not overlap, whatever streams they go to, as with a real driver. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

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

/* Instantiated graphs: a copy of every node's operation, which a launch queues on a stream.
 *
 * Launches of one do not overlap, whatever streams they go to, as with a real driver. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct step {
    struct op *op; /* NULL: an empty node's */
    CUgraphNode source;
    size_t *after; /* indices, for cuGraphExecUpdate */
    size_t n_after;
};

struct exec {
    CUgraphExec handle;
    struct context *context;
    struct step *steps;
    size_t n;
    struct stream *last; /* where it was launched last; a reference */
    cuuint64_t flags;
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
    for (size_t i = 0; i < exec->n; i++) {
        free(exec->steps[i].op);
        free(exec->steps[i].after);
    }
    free(exec->steps);
    if (exec->last)
        stream_unref(exec->last);
    free(exec);
}

static bool step_init(struct step *step, const struct node *node)
{
    step->source = node->handle;
    step->n_after = node->after.n;
    step->after = calloc(node->after.n + 1, sizeof(*step->after));
    step->op = node->op ? op_copy(node->op) : NULL;
    for (size_t i = 0; step->after && i < node->after.n; i++)
        step->after[i] = node->after.nodes[i]->index;
    return step->after && (step->op || !node->op);
}

static CUresult instantiate(const char *name, CUgraphExec *ret_exec, CUgraph handle, unsigned long long flags)
{
    struct context *context;
    CUresult r = enter_context(name, &context);
    struct graph *graph;
    struct exec *exec;

    if (r != CUDA_SUCCESS)
        return r;
    graph = graph_get(handle);
    if (!graph || !ret_exec || flags & ~15ULL)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
        return leave(CUDA_ERROR_NOT_SUPPORTED);
    exec = calloc(1, sizeof(*exec));
    if (!exec)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    exec->context = context;
    exec->flags = flags;
    exec->steps = calloc(graph->n + 1, sizeof(*exec->steps));
    for (size_t i = 0; exec->steps && i < graph->n; i++) {
        exec->n++;
        if (!step_init(&exec->steps[i], graph->nodes[i]))
            goto free_exec;
    }
    if (exec->steps)
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

API cuGraphInstantiateWithFlags(CUgraphExec *ret_exec, CUgraph graph, unsigned long long flags)
{
    return instantiate("cuGraphInstantiate", ret_exec, graph, flags);
}

API cuGraphInstantiateWithParams(CUgraphExec *ret_exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    CUresult r;

    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    params->hErrNode_out = NULL;
    r = instantiate("cuGraphInstantiate", ret_exec, graph, params->flags);
    params->result_out = r == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return r;
}

/* What the plain name and its _v2 were before CUDA 12. */
CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *ret_exec, CUgraph graph, CUgraphNode *ret_node, char *log,
                                       size_t log_size);

API cuGraphInstantiate_v2(CUgraphExec *ret_exec, CUgraph graph, CUgraphNode *ret_node, char *log, size_t log_size)
{
    if (ret_node)
        *ret_node = NULL;
    if (log && log_size)
        *log = '\0';
    return instantiate("cuGraphInstantiate", ret_exec, graph, 0);
}
#undef cuGraphInstantiate
API_ALIAS(cuGraphInstantiate_v2)
CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *ret_exec, CUgraph graph, CUgraphNode *ret_node, char *log,
                                    size_t log_size);

static CUresult enter_exec(const char *name, CUgraphExec handle, struct context **ret_context, struct exec **ret_exec)
{
    CUresult r = enter_context(name, ret_context);

    if (r != CUDA_SUCCESS)
        return r;
    *ret_exec = handle_get(HANDLE_EXEC, handle);
    return *ret_exec ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

/* As a real driver: what was launched goes on to its end. */
API cuGraphExecDestroy(CUgraphExec handle)
{
    struct context *context;
    struct exec *exec;
    CUresult r = enter_exec("cuGraphExecDestroy", handle, &context, &exec);

    if (r != CUDA_SUCCESS)
        return r;
    handle_free(handle);
    exec_free(exec);
    count(STANDIN_COUNTER_live_graph_execs, -1);
    return leave(CUDA_SUCCESS);
}

API cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *ret_flags)
{
    struct context *context;
    struct exec *exec;
    CUresult r = enter_exec("cuGraphExecGetFlags", handle, &context, &exec);

    if (r != CUDA_SUCCESS)
        return r;
    if (!ret_flags)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_flags = exec->flags;
    return leave(CUDA_SUCCESS);
}

API cuGraphUpload(CUgraphExec handle, CUstream stream_handle)
{
    struct context *context;
    struct exec *exec;
    CUresult r = enter_exec("cuGraphUpload", handle, &context, &exec);
    struct stream *stream;

    if (r != CUDA_SUCCESS)
        return r;
    r = stream_get(stream_handle, context, &stream);
    if (r == CUDA_SUCCESS)
        r = capture_check_wait(stream);
    return leave(r);
}

/* Its index; exec->n: there is none. */
static size_t last_kernel(const struct exec *exec)
{
    for (size_t i = exec->n; i-- > 0;)
        if (exec->steps[i].op && exec->steps[i].op->kind == OP_KERNEL)
            return i;
    return exec->n;
}

API cuGraphLaunch(CUgraphExec handle, CUstream stream_handle)
{
    struct context *context;
    struct exec *exec;
    CUresult r = enter_exec("cuGraphLaunch", handle, &context, &exec);
    struct stream *stream;
    uint32_t call = 0;
    size_t last;

    if (r != CUDA_SUCCESS)
        return r;
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
        struct op *op;

        if (!exec->steps[i].op)
            continue;
        op = op_copy(exec->steps[i].op);
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

/* ---- changes; launches that are queued keep what they had ---- */

API cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode node_handle,
                                      const CUDA_KERNEL_NODE_PARAMS *params)
{
    struct context *context;
    struct exec *exec;
    CUresult r = enter_exec("cuGraphExecKernelNodeSetParams", handle, &context, &exec);
    struct step *step = NULL;
    struct op *op;

    if (r != CUDA_SUCCESS)
        return r;
    if (!node_get(node_handle) || !params)
        return leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < exec->n && !step; i++)
        if (exec->steps[i].source == node_handle)
            step = &exec->steps[i];
    if (!step || !step->op || step->op->kind != OP_KERNEL)
        return leave(CUDA_ERROR_INVALID_VALUE);
    r = kernel_op_new(params, &op);
    if (r == CUDA_SUCCESS) {
        free(step->op);
        step->op = op;
    }
    return leave(r);
}

/* Where the graph is not like the one that was instantiated, or -1; says how it differs. */
static ptrdiff_t find_difference(const struct exec *exec, const struct graph *graph, CUgraphExecUpdateResult *ret_how)
{
    *ret_how = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    if (exec->n != graph->n)
        return 0;
    for (size_t i = 0; i < graph->n; i++) {
        const struct node *node = graph->nodes[i];
        const struct step *step = &exec->steps[i];

        if (!node->op != !step->op || (node->op && node->op->kind != step->op->kind)) {
            *ret_how = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
            return (ptrdiff_t)i;
        }
        if (node->after.n != step->n_after)
            return (ptrdiff_t)i;
        for (size_t k = 0; k < step->n_after; k++)
            if (node->after.nodes[k]->index != step->after[k])
                return (ptrdiff_t)i;
    }
    *ret_how = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    return -1;
}

API cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo *ret_info)
{
    struct context *context;
    struct exec *exec;
    CUresult r = enter_exec("cuGraphExecUpdate", handle, &context, &exec);
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    struct graph *graph;
    ptrdiff_t differs;

    if (r != CUDA_SUCCESS)
        return r;
    graph = graph_get(graph_handle);
    if (!graph || !ret_info)
        return leave(CUDA_ERROR_INVALID_VALUE);
    differs = find_difference(exec, graph, &info.result);
    if (differs >= 0) {
        info.errorNode = (size_t)differs < graph->n ? graph->nodes[differs]->handle : NULL;
        *ret_info = info;
        return leave(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    }
    for (size_t i = 0; i < graph->n; i++)
        if (graph->nodes[i]->op)
            *exec->steps[i].op = *graph->nodes[i]->op;
    *ret_info = info;
    return leave(CUDA_SUCCESS);
}

/* Graphs and their nodes: made by a capture, read, destroyed. */
#include <stdlib.h>

#include "graph.h"

CUresult graph_publish(struct graph *graph)
{
    graph->handle = handle_new(HANDLE_GRAPH, graph);
    if (!graph->handle)
        return CUDA_ERROR_OUT_OF_MEMORY;
    count(STANDIN_COUNTER_live_graphs, 1);
    return CUDA_SUCCESS;
}

void graph_free(struct graph *graph)
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

bool graph_add(struct graph *graph, struct op *op)
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

struct graph *graph_get(CUgraph handle)
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

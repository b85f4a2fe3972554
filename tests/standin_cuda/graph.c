/* Graphs and their nodes: made by hand or by a capture, read, changed, destroyed. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

bool tips_add(struct tips *tips, struct node *node)
{
    struct node **grown;

    for (size_t i = 0; i < tips->n; i++)
        if (tips->nodes[i] == node)
            return true;
    grown = realloc(tips->nodes, (tips->n + 1) * sizeof(struct node *));
    if (!grown)
        return false;
    tips->nodes = grown;
    tips->nodes[tips->n++] = node;
    return true;
}

bool tips_add_all(struct tips *tips, const struct tips *others)
{
    for (size_t i = 0; i < others->n; i++)
        if (!tips_add(tips, others->nodes[i]))
            return false;
    return true;
}

void tips_clear(struct tips *tips)
{
    free(tips->nodes);
    *tips = (struct tips){0};
}

struct graph *graph_new(void)
{
    return calloc(1, sizeof(struct graph));
}

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
        struct node *node = graph->nodes[i];

        handle_free(node->handle);
        tips_clear(&node->after);
        free(node->op);
        free(node);
    }
    if (graph->handle) {
        handle_free(graph->handle);
        count(STANDIN_COUNTER_live_graphs, -1);
    }
    free(graph->nodes);
    free(graph);
}

struct node *graph_add(struct graph *graph, struct op *op, const struct tips *after)
{
    struct node **grown = realloc(graph->nodes, (graph->n + 1) * sizeof(struct node *));
    struct node *node = calloc(1, sizeof(*node));

    if (grown)
        graph->nodes = grown;
    if (!grown || !node || !tips_add_all(&node->after, after))
        goto free_node;
    node->handle = handle_new(HANDLE_NODE, node);
    if (!node->handle)
        goto free_node;
    node->op = op;
    node->graph = graph;
    node->index = graph->n;
    graph->nodes[graph->n++] = node;
    return node;

free_node:
    if (node)
        tips_clear(&node->after);
    free(node);
    free(op);
    return NULL;
}

struct graph *graph_get(CUgraph handle)
{
    return handle_get(HANDLE_GRAPH, handle);
}

struct node *node_get(CUgraphNode handle)
{
    return handle_get(HANDLE_NODE, handle);
}

static CUgraphNodeType node_type(const struct node *node)
{
    if (!node->op)
        return CU_GRAPH_NODE_TYPE_EMPTY;
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

/* ---- whole graphs ---- */

API cuGraphCreate(CUgraph *ret_graph, unsigned flags)
{
    CUresult r = enter("cuGraphCreate");
    struct graph *graph;

    if (r != CUDA_SUCCESS)
        return r;
    if (!ret_graph || flags)
        return leave(CUDA_ERROR_INVALID_VALUE);
    graph = graph_new();
    r = graph ? graph_publish(graph) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS)
        *ret_graph = graph->handle;
    else
        free(graph);
    return leave(r);
}

API cuGraphDestroy(CUgraph handle)
{
    CUresult r = enter("cuGraphDestroy");
    struct graph *graph;

    if (r != CUDA_SUCCESS)
        return r;
    graph = graph_get(handle);
    if (!graph)
        return leave(CUDA_ERROR_INVALID_VALUE);
    graph_free(graph);
    return leave(CUDA_SUCCESS);
}

/* As many handles as *count has room for; without an array only how many there are. */
static void put_nodes(const struct tips *from, CUgraphNode *ret_nodes, size_t *ret_count)
{
    size_t room = *ret_count;

    if (!ret_nodes) {
        *ret_count = from->n;
        return;
    }
    for (size_t i = 0; i < room; i++)
        ret_nodes[i] = i < from->n ? from->nodes[i]->handle : NULL;
    if (room > from->n)
        *ret_count = from->n;
}

API cuGraphGetNodes(CUgraph handle, CUgraphNode *ret_nodes, size_t *ret_count)
{
    CUresult r = enter("cuGraphGetNodes");
    struct graph *graph;

    if (r != CUDA_SUCCESS)
        return r;
    graph = graph_get(handle);
    if (!graph || !ret_count)
        return leave(CUDA_ERROR_INVALID_VALUE);
    put_nodes(&(struct tips){graph->nodes, graph->n}, ret_nodes, ret_count);
    return leave(CUDA_SUCCESS);
}

API cuGraphGetRootNodes(CUgraph handle, CUgraphNode *ret_nodes, size_t *ret_count)
{
    CUresult r = enter("cuGraphGetRootNodes");
    struct tips roots = {0};
    struct graph *graph;

    if (r != CUDA_SUCCESS)
        return r;
    graph = graph_get(handle);
    if (!graph || !ret_count)
        return leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < graph->n && r == CUDA_SUCCESS; i++)
        if (!graph->nodes[i]->after.n && !tips_add(&roots, graph->nodes[i]))
            r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS)
        put_nodes(&roots, ret_nodes, ret_count);
    tips_clear(&roots);
    return leave(r);
}

/* ---- nodes ---- */

static CUresult enter_node(const char *name, CUgraphNode handle, struct node **ret_node)
{
    CUresult r = enter(name);

    if (r != CUDA_SUCCESS)
        return r;
    *ret_node = node_get(handle);
    return *ret_node ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

API cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *ret_type)
{
    struct node *node;
    CUresult r = enter_node("cuGraphNodeGetType", handle, &node);

    if (r != CUDA_SUCCESS)
        return r;
    if (!ret_type)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_type = node_type(node);
    return leave(CUDA_SUCCESS);
}

API cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode *ret_nodes, CUgraphEdgeData *ret_edges,
                                  size_t *ret_count)
{
    struct node *node;
    CUresult r = enter_node("cuGraphNodeGetDependencies", handle, &node);

    if (r != CUDA_SUCCESS)
        return r;
    if (!ret_count)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (ret_nodes && ret_edges)
        memset(ret_edges, 0, *ret_count * sizeof(*ret_edges));
    put_nodes(&node->after, ret_nodes, ret_count);
    return leave(CUDA_SUCCESS);
}

API cuGraphAddKernelNode_v2(CUgraphNode *ret_node, CUgraph handle, const CUgraphNode *after, size_t n_after,
                            const CUDA_KERNEL_NODE_PARAMS *params)
{
    struct context *context;
    CUresult r = enter_context("cuGraphAddKernelNode", &context);
    struct graph *graph;
    struct tips tips = {0};
    struct node *node;
    struct op *op;

    if (r != CUDA_SUCCESS)
        return r;
    graph = graph_get(handle);
    if (!graph || !ret_node || !params || (n_after && !after))
        return leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < n_after && r == CUDA_SUCCESS; i++) {
        node = node_get(after[i]);
        if (!node || node->graph != graph)
            r = CUDA_ERROR_INVALID_VALUE;
        else if (!tips_add(&tips, node))
            r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r == CUDA_SUCCESS)
        r = kernel_op_new(params, &op);
    if (r == CUDA_SUCCESS) {
        node = graph_add(graph, op, &tips);
        if (node)
            *ret_node = node->handle;
        else
            r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    tips_clear(&tips);
    return leave(r);
}

API cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *ret_params)
{
    struct node *node;
    CUresult r = enter_node("cuGraphKernelNodeGetParams", handle, &node);

    if (r != CUDA_SUCCESS)
        return r;
    if (!ret_params || node_type(node) != CU_GRAPH_NODE_TYPE_KERNEL)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_params = node->op->launch.given;
    ret_params->kernelParams = node->op->launch.pointers; /* as a real driver's: the node's own, while it lives */
    node->op->launch.pointers[0] = node->op->launch.params;
    return leave(CUDA_SUCCESS);
}

API cuGraphKernelNodeSetParams_v2(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS *params)
{
    struct node *node;
    CUresult r = enter_node("cuGraphKernelNodeSetParams", handle, &node);
    struct op *op;

    if (r != CUDA_SUCCESS)
        return r;
    if (!params || node_type(node) != CU_GRAPH_NODE_TYPE_KERNEL)
        return leave(CUDA_ERROR_INVALID_VALUE);
    r = kernel_op_new(params, &op);
    if (r == CUDA_SUCCESS) {
        free(node->op);
        node->op = op;
    }
    return leave(r);
}

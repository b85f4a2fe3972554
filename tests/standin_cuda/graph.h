/* Graphs, what is instantiated from them, and the captures that make them. Everything under the one mutex.
 *
 * A node holds an operation as streams queue it, with a copy of its parameters; a launch queues copies of them all in
 * the order in which they were captured. */
#ifndef KOPS_STANDIN_GRAPH_H
#define KOPS_STANDIN_GRAPH_H

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

/* ---- graph.c ---- */

CUresult graph_publish(struct graph *graph); /* gives it a handle */
void graph_free(struct graph *graph);
bool graph_add(struct graph *graph, struct op *op); /* takes op, also on failure */
struct graph *graph_get(CUgraph handle);

#endif

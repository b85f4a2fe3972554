/* Graphs, what is instantiated from them, and the captures that make them. Everything under the one mutex.
 *
 * A node holds an operation as streams queue it, with a copy of its parameters; a launch queues copies of them all in
 * the order of the nodes, which is one that the edges allow, for a node only depends on older ones. */
#ifndef KOPS_STANDIN_GRAPH_H
#define KOPS_STANDIN_GRAPH_H

#include "standin.h"

struct graph;

/* A set of nodes that something depends on. Grows; owns its array and nothing else. */
struct tips {
    struct node **nodes;
    size_t n;
};

struct node {
    CUgraphNode handle;
    struct graph *graph;
    size_t index;      /* in the graph */
    struct op *op;     /* NULL: an empty node */
    struct tips after; /* what it depends on */
    bool marked;
};

struct graph {
    CUgraph handle; /* NULL while it is being captured */
    struct node **nodes;
    size_t n;
};

struct capture {
    struct capture *next;
    uint64_t id;
    CUstreamCaptureMode mode;
    pthread_t thread;
    struct stream *origin;
    struct graph *graph;
    bool invalid;
};

/* ---- graph.c ---- */

bool tips_add(struct tips *tips, struct node *node); /* false: no memory. Once only. */
bool tips_add_all(struct tips *tips, const struct tips *others);
void tips_clear(struct tips *tips);

struct graph *graph_new(void);
CUresult graph_publish(struct graph *graph); /* gives it a handle */
void graph_free(struct graph *graph);
/* Takes op, also on failure (NULL). */
struct node *graph_add(struct graph *graph, struct op *op, const struct tips *after);
struct graph *graph_get(CUgraph handle);
struct node *node_get(CUgraphNode handle);

/* ---- capture.c ---- */

#endif

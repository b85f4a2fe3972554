/* Programs as CUDA graphs: a program's steps are captured once per set of addresses and launched as one graph. A
 * program keeps the graphs of the last few sets. When a choice of the tuning changes, the graph is captured anew.
 * Thread: any.
 *
 * Source: CUDA driver API, stream capture and graph management. */
#ifndef KOPS_CUDA_GRAPH_H
#define KOPS_CUDA_GRAPH_H

#include <pthread.h>

#include "driver/device.h"

struct cuda_graph;
struct cuda_kernels;

/* A device's stream for capturing graphs. */
struct cuda_capture {
    struct cuda_device *device;
    const struct cuda_kernels *kernels;
    pthread_mutex_t lock;
    CUstream stream; /* under the lock; made at the first graph */
};

void cuda_capture_open(struct cuda_capture *c, struct cuda_device *d, const struct cuda_kernels *kernels);
void cuda_capture_close(struct cuda_capture *c);

/* Whether a graph should run the job: the job has a program, several steps, and its capturing has not failed. */
bool cuda_graph_is_wanted(const struct backend_job *job);

/* Returns a reference to the graph of the job's steps and addresses. NULL: none, or the tuning's choices changed. */
struct cuda_graph *cuda_graph_find(const struct cuda_capture *c, const struct backend_job *job);

/* Captures the steps, and keeps the graph in *job->program. *ret_graph is NULL, without an error, where the driver
 * cannot capture them: the caller launches the steps one by one. The context is current; may block. */
int cuda_graph_make(struct cuda_capture *c, const struct backend_job *job, struct cuda_graph **ret_graph,
                    struct error *e);

CUgraphExec cuda_graph_exec(const struct cuda_graph *graph);
/* Sets each step's variant_used. */
void cuda_graph_name_variants(const struct cuda_graph *graph, const struct backend_job *job);

/* NULL is allowed. The context is current. */
void cuda_graph_unref(struct cuda_graph *graph);

/* program_free() of struct backend. */
void cuda_program_free(struct backend_device *base, struct backend_program *program);

#endif

/* Programs as CUDA graphs: the steps of a job that will run again, captured once per set of addresses and launched as
 * one. A program keeps the graphs of the last few sets; where tuning has chosen something else for a step since, its
 * graph is captured anew. Thread: any.
 *
 * Source: CUDA driver API, stream capture and graph management. */
#ifndef KOPS_CUDA_GRAPH_H
#define KOPS_CUDA_GRAPH_H

#include <pthread.h>

#include "driver/device.h"

struct cuda_graph;
struct cuda_kernels;

/* A stream of one device that only records graphs. */
struct cuda_capture {
    struct cuda_device *device;
    const struct cuda_kernels *kernels;
    pthread_mutex_t lock;
    CUstream stream; /* under the lock; made at the first graph */
};

void cuda_capture_open(struct cuda_capture *c, struct cuda_device *d, const struct cuda_kernels *kernels);
void cuda_capture_close(struct cuda_capture *c);

/* Whether a graph should run the job: it is of a program, has several steps, and capturing has not failed before. */
bool cuda_graph_is_wanted(const struct backend_job *job);

/* A reference to the graph of the job's steps on their addresses, or NULL: there is none, or one of other choices of
 * the tuning. */
struct cuda_graph *cuda_graph_find(const struct cuda_capture *c, const struct backend_job *job);

/* Captures the steps, and keeps the graph in *job->program. *ret_graph stays NULL, without an error, where the
 * driver cannot capture them: the caller launches them one by one. The context is current; may block. */
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

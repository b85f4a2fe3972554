/* Programs as CUDA graphs: the steps of a job that will come again, captured once per set of addresses and launched as
 * one. A program keeps the graphs of the last few sets.
 *
 * Source: CUDA driver API, stream capture and graph management. */
#ifndef KOPS_CUDA_GRAPH_H
#define KOPS_CUDA_GRAPH_H

#include <cuda.h>
#include <stdbool.h>

#include "backend/backend.h"

struct cuda_device;
struct cuda_graph;

/* Whether the job is one that graphs serve: part of a program, of several steps, in a context where capturing works.
 * Thread: any. */
bool cuda_graph_is_wanted(const struct backend_job *job);

/* A reference to the graph of these steps on these addresses, or NULL: none was made yet. Thread: any. */
struct cuda_graph *cuda_graph_find(const struct cuda_device *d, const struct backend_job *job);

/* Captures the steps, and keeps the graph in *job->program. *ret_graph stays NULL, without an error, where the driver
 * cannot capture them: they are to be launched one by one. Thread: any; the context is current; may block. */
int cuda_graph_make(struct cuda_device *d, const struct backend_job *job, struct cuda_graph **ret_graph,
                    struct error *e);

CUgraphExec cuda_graph_exec(const struct cuda_graph *graph);
/* Sets each step's variant_used. */
void cuda_graph_name_variants(const struct cuda_graph *graph, const struct backend_job *job);

/* NULL is allowed. Thread: any; the context is current. */
void cuda_graph_unref(struct cuda_graph *graph);

/* The vtable's program_free(). */
void cuda_program_free(struct backend_device *base, struct backend_program *program);

#endif

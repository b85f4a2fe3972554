/* The few driver functions that a benchmark calls itself, loaded at run time: the program starts without a GPU.
 *
 * Types are the driver API's, written out so that no toolkit is needed to build. */
#ifndef KOPS_BENCH_DRIVER_H
#define KOPS_BENCH_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef uint64_t cu_deviceptr;
typedef struct CUctx_st *cu_context;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUgraph_st *cu_graph;
typedef struct CUgraphExec_st *cu_graph_exec;

struct driver {
    void *library;
    cu_result (*init)(unsigned flags);
    cu_result (*device_get)(cu_device *device, int ordinal);
    cu_result (*context_retain)(cu_context *context, cu_device device);
    cu_result (*context_set)(cu_context context);
    cu_result (*memory_alloc)(cu_deviceptr *pointer, size_t bytes);
    cu_result (*memory_free)(cu_deviceptr pointer);
    cu_result (*memory_set)(cu_deviceptr pointer, unsigned value, size_t words);
    cu_result (*module_load)(cu_module *module, const void *image);
    cu_result (*module_function)(cu_function *function, cu_module module, const char *name);
    cu_result (*stream_create)(cu_stream *stream, unsigned flags);
    cu_result (*stream_synchronize)(cu_stream stream);
    cu_result (*event_create)(cu_event *event, unsigned flags);
    cu_result (*event_record)(cu_event event, cu_stream stream);
    cu_result (*event_elapsed)(float *milliseconds, cu_event from, cu_event to);
    cu_result (*launch)(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, cu_stream stream, void **parameters,
                        void **extra);
    cu_result (*error_name)(cu_result result, const char **name);
    /* NULL where the driver lacks them. */
    cu_result (*memory_set_async)(cu_deviceptr pointer, unsigned value, size_t words, cu_stream stream);
    cu_result (*capture_begin)(cu_stream stream, int mode);
    cu_result (*capture_end)(cu_stream stream, cu_graph *graph);
    cu_result (*graph_instantiate)(cu_graph_exec *executable, cu_graph graph, unsigned long long flags);
    cu_result (*graph_launch)(cu_graph_exec executable, cu_stream stream);
};

/* Loads libcuda.so.1, or what KOPS_CUDA_DRIVER names, and makes the first device's primary context current. 0; -1 with
 * a reason in `why`. */
int driver_load(struct driver *driver, char *why, size_t why_size);

/* Prints what failed and how. Returns -1 when `result` is no success. */
int driver_check(const struct driver *driver, cu_result result, const char *what);

#endif

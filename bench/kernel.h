/* A small add of this process: vectors in its own CUDA memory, a kernel equal to the daemon's, a stream to launch it
 * on.
 *
 * The driver's functions are loaded at run time, so that the program starts without a GPU, and are declared here, so
 * that no toolkit is needed to build. */
#ifndef KOPS_BENCH_KERNEL_H
#define KOPS_BENCH_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include <kops/kops.h>

enum { ADD_VECTORS = 4 };

typedef uint64_t cu_deviceptr;
typedef void *cu_handle; /* a context, module, function, stream, event, graph or executable graph */

/* Name here, the driver's name, whether it may lack it, parameters. */
#define DRIVER_FUNCTIONS(F)                                                                                            \
    F(init, "cuInit", false, (unsigned flags))                                                                         \
    F(device_get, "cuDeviceGet", false, (int *device, int ordinal))                                                    \
    F(context_retain, "cuDevicePrimaryCtxRetain", false, (cu_handle * context, int device))                            \
    F(context_set, "cuCtxSetCurrent", false, (cu_handle context))                                                      \
    F(memory_alloc, "cuMemAlloc_v2", false, (cu_deviceptr * pointer, size_t bytes))                                    \
    F(memory_free, "cuMemFree_v2", false, (cu_deviceptr pointer))                                                      \
    F(memory_set, "cuMemsetD32_v2", false, (cu_deviceptr pointer, unsigned value, size_t words))                       \
    F(module_load, "cuModuleLoadData", false, (cu_handle * module, const void *image))                                 \
    F(module_function, "cuModuleGetFunction", false, (cu_handle * function, cu_handle module, const char *name))       \
    F(stream_create, "cuStreamCreate", false, (cu_handle * stream, unsigned flags))                                    \
    F(stream_synchronize, "cuStreamSynchronize", false, (cu_handle stream))                                            \
    F(event_create, "cuEventCreate", false, (cu_handle * event, unsigned flags))                                       \
    F(event_record, "cuEventRecord", false, (cu_handle event, cu_handle stream))                                       \
    F(event_elapsed, "cuEventElapsedTime", false, (float *milliseconds, cu_handle from, cu_handle to))                 \
    F(launch, "cuLaunchKernel", false,                                                                                 \
      (cu_handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,      \
       unsigned block_z, unsigned shared_bytes, cu_handle stream, void **parameters, void **extra))                    \
    F(error_name, "cuGetErrorName", false, (int result, const char **name))                                            \
    F(memory_set_async, "cuMemsetD32Async", true,                                                                      \
      (cu_deviceptr pointer, unsigned value, size_t words, cu_handle stream))                                          \
    F(capture_begin, "cuStreamBeginCapture_v2", true, (cu_handle stream, int mode))                                    \
    F(capture_end, "cuStreamEndCapture", true, (cu_handle stream, cu_handle * graph))                                  \
    F(graph_instantiate, "cuGraphInstantiateWithFlags", true,                                                          \
      (cu_handle * executable, cu_handle graph, unsigned long long flags))                                             \
    F(graph_launch, "cuGraphLaunch", true, (cu_handle executable, cu_handle stream))

struct driver {
#define F(name, symbol, optional, parameters) int(*name) parameters;
    DRIVER_FUNCTIONS(F)
#undef F
};

struct add_kernel {
    struct driver driver;
    uint32_t elements;
    cu_handle function; /* NULL: a stand-in driver, which only sets the vectors */
    cu_handle stream;
    cu_deviceptr memory[ADD_VECTORS];
    kops_buffer *buffers[ADD_VECTORS]; /* owned */
    struct kops_tensor tensors[ADD_VECTORS];
};

/* Makes all of it on the first device. 0, an exit status otherwise. */
int add_kernel_prepare(struct add_kernel *kernel, size_t elements);

/* Makes the vectors known to the daemon. The buffers are released before the client is closed. */
int add_kernel_register(struct add_kernel *kernel, kops_client *client);
void add_kernel_release(struct add_kernel *kernel);
void add_kernel_free(struct add_kernel *kernel);

/* out = a + b of the vectors with these numbers, on the stream. 0, or -1 after a message. */
int add_kernel_launch(struct add_kernel *kernel, unsigned a, unsigned b, unsigned out);

/* Prints what failed and how. Returns -1 when `result` of the driver's is no success. */
int driver_check(const struct driver *driver, int result, const char *what);

#endif

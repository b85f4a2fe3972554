/* The stand-in driver (tests/standin_cuda), as tests call it: its functions, a stream, a gate on it. */
#ifndef KOPS_TEST_DRIVER_H
#define KOPS_TEST_DRIVER_H

#include <kops/kops.h>
#include <stdatomic.h>

#include "tests/standin_cuda/control.h"

/* What tests call of the driver: as what, its symbol, its parameters. */
#define CU_CALLS(X)                                                                                                    \
    X(init, cuInit, (unsigned))                                                                                        \
    X(device_get, cuDeviceGet, (int *, int))                                                                           \
    X(retain, cuDevicePrimaryCtxRetain, (void **, int))                                                                \
    X(set, cuCtxSetCurrent, (void *))                                                                                  \
    X(synchronize, cuCtxSynchronize, (void))                                                                           \
    X(stream_create, cuStreamCreate, (void **, unsigned))                                                              \
    X(stream_destroy, cuStreamDestroy_v2, (void *))                                                                    \
    X(stream_synchronize, cuStreamSynchronize, (void *))                                                               \
    X(stream_query, cuStreamQuery, (void *))                                                                           \
    X(host_register, cuMemHostRegister_v2, (void *, size_t, unsigned))                                                 \
    X(host_flags, cuMemHostGetFlags, (unsigned *, void *))                                                             \
    X(device_pointer, cuMemHostGetDevicePointer_v2, (uint64_t *, void *, unsigned))                                    \
    X(wait, cuStreamWaitValue64_v2, (void *, uint64_t, uint64_t, unsigned))                                            \
    X(write, cuStreamWriteValue64_v2, (void *, uint64_t, uint64_t, unsigned))                                          \
    X(begin_capture, cuStreamBeginCapture_v2, (void *, int))                                                           \
    X(end_capture, cuStreamEndCapture, (void *, void **))                                                              \
    X(instantiate, cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                 \
    X(graph_launch, cuGraphLaunch, (void *, void *))                                                                   \
    X(mem_alloc, cuMemAlloc_v2, (uint64_t *, size_t))                                                                  \
    X(mem_free, cuMemFree_v2, (uint64_t))                                                                              \
    X(alloc_async, cuMemAllocAsync, (uint64_t *, size_t, void *))                                                      \
    X(attribute, cuPointerGetAttribute, (void *, int, uint64_t))                                                       \
    X(range, cuMemGetAddressRange_v2, (uint64_t *, size_t *, uint64_t))                                                \
    X(to_host, cuMemcpyDtoH_v2, (void *, uint64_t, size_t))                                                            \
    X(create, cuMemCreate, (unsigned long long *, size_t, const void *, unsigned long long))                           \
    X(export, cuMemExportToShareableHandle, (void *, unsigned long long, int, unsigned long long))                     \
    X(release, cuMemRelease, (unsigned long long))

struct cu_calls {
#define X(name, symbol, parameters) int(*name) parameters;
    CU_CALLS(X)
#undef X
};

extern struct cu_calls cu;

extern void *context, *stream;

/* Words of the test's own that streams can wait for and write. */
extern _Atomic uint64_t *words;
extern uint64_t words_address;

/* The driver's switches, for it and those of processes that are started from now on: before load(). */
int open_control(void **state);
int close_control(void **state);
/* The next calls of the function fail, in whatever process. */
struct standin_fault *fail_next(const char *function, unsigned times, int error, bool sticky);

/* Loads the driver, makes `stream` in the current context: the set-up of a group of tests. */
int load(void **state);

/* Memory of the device, which is the host's. */
uint64_t allocate(size_t size);

/* Waits for a stream. */
void finish(void *on);

/* Runs what was captured, and waits for it. */
void launch_graph(void *graph, void *on);

/* Nothing on the stream goes on before open_gate(). */
void close_gate(void);
void open_gate(void);

/* Launches that a real daemon's statistics have of a kernel, or an op, in clients' own contexts. */
uint64_t launches_here(kops_client *client);

#endif

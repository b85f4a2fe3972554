/* The stand-in driver (tests/standin_cuda), as tests use it: a stream, a gate on it, faults. */
#ifndef KOPS_TEST_DRIVER_H
#define KOPS_TEST_DRIVER_H

#include <cuda.h>
#include <kops/kops.h>
#include <stdatomic.h>

#include "tests/standin_cuda/control.h"

extern CUcontext context;
extern CUstream stream;

/* Words of the test's own that streams can wait for and write. */
extern _Atomic uint64_t *words;
extern CUdeviceptr words_address;

/* The driver's switches, for it and those of processes that are started from now on: before load(). */
int open_control(void **state);
int close_control(void **state);
/* The next calls of the function fail, in whatever process. */
struct standin_fault *fail_next(const char *function, unsigned times, int error, bool sticky);

/* Starts the driver, makes `stream` in the current context: the set-up of a group of tests. */
int load(void **state);

/* Memory of the device, which is the host's. */
CUdeviceptr allocate(size_t size);

/* Waits for a stream. */
void finish(CUstream on);

/* Runs what was captured, and waits for it. */
void launch_graph(CUgraph graph, CUstream on);

/* Nothing on the stream goes on before open_gate(). */
void close_gate(void);
void open_gate(void);

/* Launches that a real daemon's statistics have of a kernel, or an op, in clients' own contexts. */
uint64_t launches_here(kops_client *client);

#endif

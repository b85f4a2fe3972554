/* What tests of ordered calls share: the stand-in driver, a gate on a stream, and a daemon that works on timelines. */
#ifndef KOPS_TEST_ORDERED_FAKE_H
#define KOPS_TEST_ORDERED_FAKE_H

#include <semaphore.h>
#include <stdatomic.h>

#include "test.h"
#include "tests/standin_cuda/control.h"

/* ---- the driver ---- */

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

/* Loads the driver, makes `stream` in the current context. */
void load(void);
/* The same as the set-up of a group of tests. */
int load_for_all(void **state);

/* Memory of the device, which is the host's. */
uint64_t allocate(size_t size);

/* Waits for a stream. */
void finish(void *on);

/* Runs what was captured, and waits for it. */
void launch_graph(void *graph, void *on);

/* Nothing on the stream goes on before open_gate(). */
void close_gate(void);
void open_gate(void);

/* ---- with a real daemon ---- */

/* Launches that its statistics have of a kernel, or an op, in clients' own contexts. */
uint64_t launches_here(kops_client *client);

/* out[i] = 2 * in[i], for i < n; the extents of both are `size`. The stand-in driver knows it by its name. */
enum kops_code compile_twice(kops_client *client, const char *size, kops_kernel **ret, struct kops_error *error);

/* ---- the daemon ---- */

enum death { NEVER, BEFORE_READY, BEFORE_DONE, BEFORE_REPLY, AFTER_REPLY };

struct daemon {
    sem_t permits; /* with `hold`: one op ends for each */
    atomic_bool hold;
    _Atomic enum death die;          /* once, */
    atomic_uint die_at;              /* at that request */
    _Atomic(const char *) fail_tag;  /* an op with this tag fails; in a sequence, the one at fail_index */
    _Atomic(const char *) fail_code; /* NULL: device_error */
    atomic_int fail_index;
    atomic_uint requests, sequences, ops, released;
    atomic_uint streams[256];
};

/* ---- a client and its daemon ---- */

struct setting {
    struct daemon d;
    struct fake *f;
    kops_client *client;
    struct tagged t;
    struct kops_error error;
};

struct setting *start(enum kops_transport transport, int64_t timeout_ms);
void stop(struct setting *s);

/* As the state of a test. */
int begin_by_ring(void **state);
int begin_by_socket(void **state);
int end_setting(void **state);

/* Waits for what is on `stream`. */
void expect_end(struct setting *s, enum kops_code code);

/* An op on nothing, on `stream`. */
enum kops_code enqueue(struct setting *s, const char *tag);

#endif

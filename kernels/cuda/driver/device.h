/* A GPU: its primary context, events and scratch memory, and errors of driver calls.
 *
 * cuda_device_describe() fills in what is known without a context, cuda_device_activate() the rest. Afterwards a struct
 * cuda_device is constant, except for `fault` and `repack_used`, which are atomic, and the events, which have a lock.
 * Thread: any. */
#ifndef KOPS_CUDA_DEVICE_H
#define KOPS_CUDA_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "driver.h"
#include "util/error.h"

/* Threads can sleep on events of the kinds …_END. */
enum cuda_event_kind { EVENT_TIMED, EVENT_TIMED_END, EVENT_PLAIN_END, EVENT_KINDS };

/* A pool of driver events, so that jobs in steady state create and destroy none. */
struct cuda_events {
    pthread_mutex_t lock;
    struct cuda_event_stack {
        CUevent *items;
        size_t count, capacity; /* capacity ≥ made, so a return never allocates */
        size_t made;
    } free[EVENT_KINDS];
};

struct cuda_device {
    struct backend_device base; /* first: the server's view */
    struct backend_host host;
    CUdevice ordinal;
    bool registers_read_only;
    bool has_pools;        /* stream-ordered memory pools */
    uint64_t repack_bytes; /* scratch memory for copies of operands, for all queues together; 0: none */

    /* Members of an active device: */
    CUcontext context;         /* primary, retained; NULL: the device is not active */
    atomic_int fault;          /* the sticky CUresult that broke the context, or 0 */
    CUmemoryPool pool;         /* scratch memory; NULL where the device has no pools */
    atomic_ullong repack_used; /* bytes in use out of repack_bytes */
    CUstream service;          /* for work outside jobs, such as zeroing new memory */
    struct cuda_events events;
};

/* A FIFO of the device, where work is enqueued. */
struct cuda_queue {
    struct cuda_device *device;
    CUstream stream;
    CUdeviceptr workspace; /* scratch for cuBLASLt; 0: none */
    CUdeviceptr scratch;   /* for copies of operands; 0: none */
    uint64_t scratch_bytes;
    CUdeviceptr small; /* for steps with few bytes in host memory, one after the other; 0: none */
};

static inline struct cuda_device *cuda_device(struct backend_device *base)
{
    return (struct cuda_device *)(void *)base;
}

/* Fills in what the driver says about device `number`. Makes no context. */
int cuda_device_describe(struct cuda_device *d, int number, const struct backend_host *host, struct error *e);
/* Makes the context and makes it current in the calling thread. After a failure the device is not active. */
int cuda_device_activate(struct cuda_device *d, struct error *e);
/* Releases the context. All events must have been returned, except on a broken context, where calls fail harmlessly. */
void cuda_device_deactivate(struct cuda_device *d);

static inline bool cuda_device_is_active(const struct cuda_device *d)
{
    return d->context != NULL;
}

/* Returns 0 for an attribute that the driver does not know. */
int cuda_device_attribute(const struct cuda_device *d, CUdevice_attribute which);
int cuda_device_memory_free(struct cuda_device *d, uint64_t *ret_bytes);

/* Makes the device's context current in the calling thread. Error: device_lost. */
int cuda_enter(struct cuda_device *d, struct error *e);

/* Makes the device's context current, and returns the driver's functions that need one. */
static inline const struct cuda_context_driver *cuda_on(const struct cuda_device *d)
{
    return cuda_driver_in(d->context);
}

/* ---- faults ---- */

/* Records a sticky fault and wakes the loop, whose poll then fails all unfinished jobs. */
void cuda_device_break(struct cuda_device *d, CUresult result);

static inline bool cuda_device_is_broken(const struct cuda_device *d)
{
    return atomic_load_explicit(&d->fault, memory_order_relaxed) != 0;
}

/* Fills `e` with device_lost for a broken device; returns -1. */
int cuda_device_lost(const struct cuda_device *d, struct error *e);

/* Fills `e` for a failed call and returns -1. A sticky result also marks `d` (may be NULL) as broken. */
int cuda_fail(struct cuda_device *d, CUresult result, const char *call, struct error *e);

static inline int cuda_check(struct cuda_device *d, CUresult result, const char *call, struct error *e)
{
    return __builtin_expect(result == CUDA_SUCCESS, 1) ? 0 : cuda_fail(d, result, call, e);
}

/* CUDA_CALL(device, e, MemUnmap, address, size) calls the driver and returns 0, or -1 with an error. */
#define CUDA_CALL(device, e, Name, ...) cuda_check((device), cuda_on(device)->Name(__VA_ARGS__), "cu" #Name, (e))

/* As CUDA_CALL(), but a sticky result does not break the device, which nothing uses before it is active. */
#define CUDA_OPEN_CALL(device, e, Name, ...) cuda_check(NULL, cuda_on(device)->Name(__VA_ARGS__), "cu" #Name, (e))

/* As CUDA_CALL(), for calls that need no context. */
#define CUDA_DRIVER_CALL(e, Name, ...) cuda_check(NULL, cuda.Name(__VA_ARGS__), "cu" #Name, (e))

/* Fills `e` for a failed call whose purpose was to see the end of work; returns -1. Breaks the device, whatever the
 * result: work whose end goes unseen may use memory as long as the context lives. */
int cuda_fail_unseen(struct cuda_device *d, CUresult result, const char *call, struct error *e);

/* Waits for the work on the stream; a failure breaks the device. Blocks. */
int cuda_stream_wait(struct cuda_device *d, CUstream stream, struct error *e);

/* ---- events ---- */

/* Takes an unused event and records it on the stream. */
int cuda_event_mark(struct cuda_device *d, enum cuda_event_kind kind, CUstream stream, CUevent *ret_event,
                    struct error *e);
/* NULL is allowed. */
void cuda_event_return(struct cuda_device *d, enum cuda_event_kind kind, CUevent event);
/* Microseconds between two events that have happened; NAN where either is NULL or the driver has no answer. */
double cuda_event_us(struct cuda_device *d, CUevent from, CUevent to);

/* ---- scratch memory: the device has pools ---- */

/* Allocates memory for later work on the stream. */
int cuda_scratch_alloc(struct cuda_device *d, CUstream stream, uint64_t bytes, CUdeviceptr *ret_address,
                       struct error *e);
/* Frees the memory after the work that is now on the stream. 0 is allowed. */
void cuda_scratch_free(const struct cuda_device *d, CUstream stream, CUdeviceptr address);

/* Allocates scratch memory out of `repack_bytes`. Error: out_of_memory, also if these are used up. */
int cuda_scratch_take(struct cuda_device *d, CUstream stream, uint64_t bytes, CUdeviceptr *ret_address,
                      struct error *e);
/* Frees what take() allocated, after the work that is now on the stream. Address 0 is allowed. */
void cuda_scratch_give(struct cuda_device *d, CUstream stream, CUdeviceptr address, uint64_t bytes);

/* Gives the queue at least `bytes` of scratch memory. A failure leaves it with none. */
int cuda_queue_need_scratch(struct cuda_queue *q, uint64_t bytes, struct error *e);
/* Frees the queue's scratch memory after the work that is now on its stream. Harmless without any. */
void cuda_queue_give_scratch(struct cuda_queue *q);

/* ---- page-locked host memory, for words that the host and the GPU share ---- */

/* Allocates zeroed memory; *ret_address: its address for the device. A failure does not break the device. */
int cuda_host_alloc(struct cuda_device *d, size_t bytes, void **ret_host, CUdeviceptr *ret_address, struct error *e);
/* NULL is allowed. */
void cuda_host_free(struct cuda_device *d, void *host);

#endif

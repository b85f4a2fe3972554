/* One GPU: its primary context, its events and scratch memory, and how results of driver calls become errors.
 *
 * cuda_device_describe() fills in what is known without a context, cuda_device_activate() the rest. A struct
 * cuda_device is fixed from then on, but for `fault` and `repack_used`, which are atomic, and the events, which have a
 * lock. Thread: any. */
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

/* A thread can sleep until an event of the kinds "end" has happened. */
enum cuda_event_kind { EVENT_TIMED, EVENT_TIMED_END, EVENT_PLAIN_END, EVENT_KINDS };

/* A pool of driver events: a job in steady state makes and destroys none. */
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
    bool has_pools;        /* of memory in stream order */
    uint64_t repack_bytes; /* scratch memory for copies of operands, for all queues together; 0: none */

    /* Of an active device. */
    CUcontext context;         /* primary, retained; NULL: the device is not active */
    atomic_int fault;          /* the sticky CUresult that broke the context, or 0 */
    CUmemoryPool pool;         /* of scratch memory; NULL where the device has no pools */
    atomic_ullong repack_used; /* of repack_bytes */
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

/* Finds the driver's device of that number and asks the driver about it, without making a context. */
int cuda_device_describe(struct cuda_device *d, int number, const struct backend_host *host, struct error *e);
/* Makes the context, which is current in the calling thread afterwards. After a failure the device is not active. */
int cuda_device_activate(struct cuda_device *d, struct error *e);
/* Gives the context back. All events were returned, except on a broken context, where every call fails harmlessly. */
void cuda_device_deactivate(struct cuda_device *d);

static inline bool cuda_device_is_active(const struct cuda_device *d)
{
    return d->context != NULL;
}

/* 0 for an attribute that the driver does not know. */
int cuda_device_attribute(const struct cuda_device *d, CUdevice_attribute which);
int cuda_device_memory_free(struct cuda_device *d, uint64_t *ret_bytes);

/* Makes the device's context current in the calling thread. Error: device_lost. */
int cuda_enter(struct cuda_device *d, struct error *e);

/* The driver's functions that need a context, with the device's made current. */
static inline const struct cuda_context_driver *cuda_on(const struct cuda_device *d)
{
    return cuda_driver_in(d->context);
}

/* ---- faults ---- */

/* Notes a sticky fault and makes the loop poll, which then fails all unfinished jobs. */
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

/* One driver call on a device as a fallible function: CUDA_CALL(device, e, MemUnmap, address, size). */
#define CUDA_CALL(device, e, Name, ...) cuda_check((device), cuda_on(device)->Name(__VA_ARGS__), "cu" #Name, (e))

/* While the device becomes active nobody uses it yet, so a sticky result breaks nothing. */
#define CUDA_OPEN_CALL(device, e, Name, ...) cuda_check(NULL, cuda_on(device)->Name(__VA_ARGS__), "cu" #Name, (e))

/* A call that needs no context. */
#define CUDA_DRIVER_CALL(e, Name, ...) cuda_check(NULL, cuda.Name(__VA_ARGS__), "cu" #Name, (e))

/* Fills `e` for a failed call that was to tell when work ends; returns -1. Any such failure breaks the device: work
 * whose end goes unseen may use memory for as long as the context lives. */
int cuda_fail_unseen(struct cuda_device *d, CUresult result, const char *call, struct error *e);

/* Waits for the work on the stream; a failure breaks the device. Blocks. */
int cuda_stream_wait(struct cuda_device *d, CUstream stream, struct error *e);

/* ---- events ---- */

/* An event that nothing else uses, recorded on the stream. */
int cuda_event_mark(struct cuda_device *d, enum cuda_event_kind kind, CUstream stream, CUevent *ret_event,
                    struct error *e);
/* NULL is allowed. */
void cuda_event_return(struct cuda_device *d, enum cuda_event_kind kind, CUevent event);
/* Microseconds between two events that have happened; NAN where either is NULL or the driver has no answer. */
double cuda_event_us(struct cuda_device *d, CUevent from, CUevent to);

/* ---- scratch memory: the device has pools ---- */

/* Memory for work behind this call on the stream. */
int cuda_scratch_alloc(struct cuda_device *d, CUstream stream, uint64_t bytes, CUdeviceptr *ret_address,
                       struct error *e);
/* Frees memory behind the work that is on the stream now. 0 is allowed. */
void cuda_scratch_free(const struct cuda_device *d, CUstream stream, CUdeviceptr address);

/* Scratch memory for copies of operands, out of `repack_bytes`. Error: out_of_memory, also where the share is used up.
 */
int cuda_scratch_take(struct cuda_device *d, CUstream stream, uint64_t bytes, CUdeviceptr *ret_address,
                      struct error *e);
/* Address 0 is allowed. */
void cuda_scratch_give(struct cuda_device *d, CUstream stream, CUdeviceptr address, uint64_t bytes);

/* Makes sure that the queue has so much of it. Work in preparation for the queue may not count on less any more. */
int cuda_queue_need_scratch(struct cuda_queue *q, uint64_t bytes, struct error *e);
/* Behind the work that uses the memory. Harmless without any. */
void cuda_queue_give_scratch(struct cuda_queue *q);

/* ---- page-locked host memory, for words that the host and the GPU share ---- */

/* Zeroed memory, and its address for the device. A failure breaks nothing. */
int cuda_host_alloc(struct cuda_device *d, size_t bytes, void **ret_host, CUdeviceptr *ret_address, struct error *e);
/* NULL is allowed. */
void cuda_host_free(struct cuda_device *d, void *host);

#endif

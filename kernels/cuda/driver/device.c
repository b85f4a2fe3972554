/* Describes devices, makes their contexts and gives them back; owns the free events and the pool of scratch memory. */
#include "device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/log.h"

/* ---- contexts ---- */

int cuda_device_lost(const struct cuda_device *d, struct error *e)
{
    error_set(e, ERROR_DEVICE_LOST, "%s: the GPU's context is broken, and the work on it is lost", d->base.info.uuid);
    return error_detail_text(e, "driver", cuda_result_name((CUresult)atomic_load(&d->fault)));
}

void cuda_device_break(struct cuda_device *d, CUresult result)
{
    int none = 0;

    if (!atomic_compare_exchange_strong(&d->fault, &none, (int)result))
        return;
    log_error("cuda_device_lost", "device=%s driver=%s", d->base.info.uuid, cuda_result_name(result));
    d->host.wake(d->host.context);
}

int cuda_fail(struct cuda_device *device, CUresult result, const char *call, struct error *e)
{
    const char *name = cuda_result_name(result);

    if (cuda_result_is_sticky(result)) {
        if (device)
            cuda_device_break(device, result);
        error_set(e, ERROR_DEVICE_LOST, "%s failed with %s: %s", call, name,
                  device ? "the GPU's context is broken, and the work on it is lost" : "the GPU cannot be used now");
    } else if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        error_set(e, ERROR_OUT_OF_MEMORY, "the GPU has too little free memory (%s); free some, or use smaller tensors",
                  call);
    } else {
        error_set(e, ERROR_DEVICE_ERROR, "%s failed with %s", call, name);
    }
    return error_detail_text(e, "driver", name);
}

int cuda_fail_unseen(struct cuda_device *d, CUresult result, const char *call, struct error *e)
{
    cuda_fail(d, result, call, e);
    cuda_device_break(d, result);
    return -1;
}

int cuda_stream_wait(struct cuda_device *d, CUstream stream, struct error *e)
{
    CUresult r = cuda_on(d)->StreamSynchronize(stream);

    return r == CUDA_SUCCESS ? 0 : cuda_fail_unseen(d, r, "cuStreamSynchronize", e);
}

int cuda_enter(struct cuda_device *d, struct error *e)
{
    CUresult r;

    if (cuda_device_is_broken(d))
        return cuda_device_lost(d, e);
    r = cuda_driver_enter(d->context);
    if (r == CUDA_SUCCESS)
        return 0;
    /* The context is unusable, whatever the reason. */
    cuda_device_break(d, r);
    return cuda_device_lost(d, e);
}

int cuda_device_attribute(const struct cuda_device *d, CUdevice_attribute which)
{
    int value = 0;

    return cuda.DeviceGetAttribute(&value, which, d->ordinal) == CUDA_SUCCESS ? value : 0;
}

/* ---- events ---- */

static const unsigned flags[EVENT_KINDS] = {
    [EVENT_TIMED] = CU_EVENT_DEFAULT,
    [EVENT_TIMED_END] = CU_EVENT_BLOCKING_SYNC,
    [EVENT_PLAIN_END] = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING,
};

static void destroy_events(struct cuda_device *d, struct cuda_events *pool)
{
    for (unsigned kind = 0; kind < EVENT_KINDS; kind++) {
        struct cuda_event_stack *stack = &pool->free[kind];

        while (stack->count > 0)
            cuda_on(d)->EventDestroy(stack->items[--stack->count]);
        free(stack->items);
    }
    pthread_mutex_destroy(&pool->lock);
}

static int grow(struct cuda_event_stack *stack, struct error *e)
{
    size_t capacity = stack->capacity ? 2 * stack->capacity : 64;
    CUevent *items;

    if (stack->made < stack->capacity)
        return 0;
    items = realloc(stack->items, capacity * sizeof(*items));
    if (!items)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for %zu events", capacity);
    stack->items = items;
    stack->capacity = capacity;
    return 0;
}

static int take(struct cuda_device *d, enum cuda_event_kind kind, CUevent *ret_event, struct error *e)
{
    struct cuda_event_stack *stack = &d->events.free[kind];
    int r = 0;

    pthread_mutex_lock(&d->events.lock);
    if (stack->count > 0) {
        *ret_event = stack->items[--stack->count];
    } else {
        r = grow(stack, e);
        if (r == 0)
            r = CUDA_CALL(d, e, EventCreate, ret_event, flags[kind]);
        if (r == 0)
            stack->made++;
    }
    pthread_mutex_unlock(&d->events.lock);
    return r;
}

int cuda_event_mark(struct cuda_device *d, enum cuda_event_kind kind, CUstream stream, CUevent *ret_event,
                    struct error *e)
{
    CUevent event;

    if (take(d, kind, &event, e) < 0)
        return -1;
    if (CUDA_CALL(d, e, EventRecord, event, stream) < 0) {
        cuda_event_return(d, kind, event);
        return -1;
    }
    *ret_event = event;
    return 0;
}

void cuda_event_return(struct cuda_device *d, enum cuda_event_kind kind, CUevent event)
{
    struct cuda_event_stack *stack = &d->events.free[kind];

    if (!event)
        return;
    pthread_mutex_lock(&d->events.lock);
    stack->items[stack->count++] = event;
    pthread_mutex_unlock(&d->events.lock);
}

double cuda_event_us(struct cuda_device *d, CUevent from, CUevent to)
{
    float ms;

    if (!from || !to || cuda_on(d)->EventElapsedTime(&ms, from, to) != CUDA_SUCCESS)
        return NAN;
    return (double)ms * 1e3;
}

/* ---- scratch memory ---- */

enum { POOL_KEEP_BYTES = 512 << 20 /* scratch that the pool keeps between jobs, at least */ };

/* A driver without the attribute has no pools. */
static int describe_pools(struct cuda_device *d, struct error *e)
{
    int supported = 0;
    CUresult r = cuda.DeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, d->ordinal);

    d->has_pools = r == CUDA_SUCCESS && supported;
    return r == CUDA_ERROR_INVALID_VALUE ? 0 : cuda_check(NULL, r, "cuDeviceGetAttribute", e);
}

static void close_scratch(struct cuda_device *d)
{
    if (d->pool)
        cuda_on(d)->MemPoolDestroy(d->pool);
    d->pool = NULL;
}

/* Makes a pool of our own, whose threshold for keeping memory is ours to set. */
static int open_scratch(struct cuda_device *d, struct error *e)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->ordinal}};
    cuuint64_t keep = d->repack_bytes > POOL_KEEP_BYTES ? d->repack_bytes : POOL_KEEP_BYTES;

    if (!d->has_pools)
        return 0;
    if (CUDA_OPEN_CALL(d, e, MemPoolCreate, &d->pool, &props) < 0)
        return -1;
    if (CUDA_OPEN_CALL(d, e, MemPoolSetAttribute, d->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) < 0) {
        close_scratch(d);
        return -1;
    }
    return 0;
}

int cuda_scratch_alloc(struct cuda_device *d, CUstream stream, uint64_t bytes, CUdeviceptr *ret_address,
                       struct error *e)
{
    return CUDA_CALL(d, e, MemAllocFromPoolAsync, ret_address, bytes, d->pool, stream);
}

void cuda_scratch_free(const struct cuda_device *d, CUstream stream, CUdeviceptr address)
{
    if (address)
        cuda_on(d)->MemFreeAsync(address, stream);
}

int cuda_scratch_take(struct cuda_device *d, CUstream stream, uint64_t bytes, CUdeviceptr *ret_address, struct error *e)
{
    unsigned long long used = atomic_load_explicit(&d->repack_used, memory_order_relaxed);

    do {
        if (bytes > d->repack_bytes || used > d->repack_bytes - bytes)
            return error_set(e, ERROR_OUT_OF_MEMORY,
                             "copies of operands would take %llu bytes, and %llu of %llu are in use on %s",
                             (unsigned long long)bytes, used, (unsigned long long)d->repack_bytes, d->base.info.name);
    } while (!atomic_compare_exchange_weak(&d->repack_used, &used, used + bytes));
    if (cuda_scratch_alloc(d, stream, bytes, ret_address, e) == 0)
        return 0;
    atomic_fetch_sub(&d->repack_used, bytes);
    return -1;
}

void cuda_scratch_give(struct cuda_device *d, CUstream stream, CUdeviceptr address, uint64_t bytes)
{
    if (!address)
        return;
    cuda_scratch_free(d, stream, address);
    atomic_fetch_sub(&d->repack_used, bytes);
}

int cuda_queue_need_scratch(struct cuda_queue *q, uint64_t bytes, struct error *e)
{
    if (bytes <= q->scratch_bytes)
        return 0;
    cuda_queue_give_scratch(q);
    if (cuda_scratch_take(q->device, q->stream, bytes, &q->scratch, e) < 0)
        return -1;
    q->scratch_bytes = bytes;
    return 0;
}

void cuda_queue_give_scratch(struct cuda_queue *q)
{
    cuda_scratch_give(q->device, q->stream, q->scratch, q->scratch_bytes);
    q->scratch = 0;
    q->scratch_bytes = 0;
}

/* ---- page-locked host memory ---- */

int cuda_host_alloc(struct cuda_device *d, size_t bytes, void **ret_host, CUdeviceptr *ret_address, struct error *e)
{
    void *host;

    if (CUDA_OPEN_CALL(d, e, MemHostAlloc, &host, bytes, CU_MEMHOSTALLOC_DEVICEMAP) < 0)
        return -1;
    if (CUDA_OPEN_CALL(d, e, MemHostGetDevicePointer, ret_address, host, 0) < 0) {
        cuda_host_free(d, host);
        return -1;
    }
    *ret_host = memset(host, 0, bytes);
    return 0;
}

void cuda_host_free(struct cuda_device *d, void *host)
{
    if (host)
        cuda_on(d)->MemFreeHost(host);
}

/* ---- devices ---- */

enum { ATTRIBUTE_MPS_ENABLED = 133 /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, missing in older cuda.h */ };

int cuda_device_memory_free(struct cuda_device *d, uint64_t *ret_bytes)
{
    size_t unused, total;
    struct error e;

    if (!CUDA_HAS(MemGetInfo) || cuda_enter(d, &e) < 0 || CUDA_CALL(d, &e, MemGetInfo, &unused, &total) < 0)
        return -1;
    *ret_bytes = unused;
    return 0;
}

/* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", as nvidia-smi prints it. */
static void format_uuid(const CUuuid *uuid, char *into, size_t size)
{
    unsigned char b[16];

    memcpy(b, uuid->bytes, sizeof(b));
    snprintf(into, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
             b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static int describe(struct cuda_device *d, struct error *e)
{
    struct backend_device_info *info = &d->base.info;
    int major, minor, processors;
    CUuuid uuid;
    size_t bytes;

    if (CUDA_DRIVER_CALL(e, DeviceGetName, info->name, sizeof(info->name), d->ordinal) < 0 ||
        CUDA_DRIVER_CALL(e, DeviceGetUuid, &uuid, d->ordinal) < 0 ||
        CUDA_DRIVER_CALL(e, DeviceTotalMem, &bytes, d->ordinal) < 0 ||
        CUDA_DRIVER_CALL(e, DeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d->ordinal) < 0 ||
        CUDA_DRIVER_CALL(e, DeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, d->ordinal) < 0 ||
        CUDA_DRIVER_CALL(e, DeviceGetAttribute, &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d->ordinal) < 0)
        return -1;
    format_uuid(&uuid, info->uuid, sizeof(info->uuid));
    snprintf(info->arch, sizeof(info->arch), "sm_%d%d", major, minor);
    info->memory_bytes = bytes;
    info->compute_units = (unsigned)processors;
    info->shared = cuda_device_attribute(d, (CUdevice_attribute)ATTRIBUTE_MPS_ENABLED) != 0;
    /* Under MPS the exclusive process is the MPS server, whose clients share the device. */
    info->exclusive =
        !info->shared && cuda_device_attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
    info->clusters = CUDA_HAS(LaunchKernelEx);
    d->registers_read_only = cuda_device_attribute(d, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) != 0;
    return describe_pools(d, e);
}

int cuda_device_describe(struct cuda_device *d, int number, const struct backend_host *host, struct error *e)
{
    d->host = *host;
    return CUDA_DRIVER_CALL(e, DeviceGet, &d->ordinal, number) < 0 ? -1 : describe(d, e);
}

static void release_context(struct cuda_device *d)
{
    cuda_driver_enter(NULL);
    cuda.DevicePrimaryCtxRelease(d->ordinal);
    d->context = NULL;
}

int cuda_device_activate(struct cuda_device *d, struct error *e)
{
    if (CUDA_DRIVER_CALL(e, DevicePrimaryCtxRetain, &d->context, d->ordinal) < 0) {
        d->context = NULL;
        return -1;
    }
    if (cuda_check(NULL, cuda_driver_enter(d->context), "cuCtxSetCurrent", e) < 0)
        goto release_context;
    if (CUDA_OPEN_CALL(d, e, StreamCreate, &d->service, CU_STREAM_NON_BLOCKING) < 0)
        goto release_context;
    if (open_scratch(d, e) < 0)
        goto destroy_service;
    d->events = (struct cuda_events){0};
    pthread_mutex_init(&d->events.lock, NULL);
    return 0;

destroy_service:
    cuda_on(d)->StreamDestroy(d->service);
release_context:
    release_context(d);
    return -1;
}

void cuda_device_deactivate(struct cuda_device *d)
{
    destroy_events(d, &d->events);
    close_scratch(d);
    cuda_on(d)->StreamDestroy(d->service);
    release_context(d);
}

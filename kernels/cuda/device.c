/* Owns the devices: finds them, makes their contexts and everything that lives in one, and takes it down again. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abandon.h"
#include "blaslt.h"
#include "code.h"
#include "job.h"
#include "stream.h"
#include "util/log.h"
#include "waiter.h"

enum {
    ATTRIBUTE_MPS_ENABLED = 133, /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which older headers do not have */
    POOL_KEEP_BYTES = 512 << 20, /* scratch that stays with the daemon between jobs */
    WORKSPACE_BYTES = 32 << 20   /* what cuBLASLt's best algorithms want on the largest devices */
};

int cuda_device_lost(const struct cuda_device *d, struct error *e)
{
    error_set(e, ERROR_DEVICE_LOST, "%s: the GPU's context is broken until the daemon restarts", d->base.info.uuid);
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

int cuda_enter(struct cuda_device *d, struct error *e)
{
    CUresult r;

    if (cuda_device_is_broken(d))
        return cuda_device_lost(d, e);
    r = cuda_driver_enter(d->context);
    if (r == CUDA_SUCCESS)
        return 0;
    /* A context that cannot be made current serves nothing any more, whatever the reason. */
    cuda_device_break(d, r);
    return cuda_device_lost(d, e);
}

int cuda_memory_free(struct backend_device *base, uint64_t *ret_bytes)
{
    struct cuda_device *d = cuda_device(base);
    size_t unused, total;
    struct error e;

    if (!CUDA_HAS(MemGetInfo) || cuda_enter(d, &e) < 0 || CUDA_CALL(d, &e, MemGetInfo, &unused, &total) < 0)
        return -1;
    *ret_bytes = unused;
    return 0;
}

static int attribute(const struct cuda_device *d, CUdevice_attribute which)
{
    int value = 0;

    return cuda.DeviceGetAttribute(&value, which, d->ordinal) == CUDA_SUCCESS ? value : 0;
}

/* One that decides what the device is used for: not knowing is no answer, but for a driver that does not know it. */
static int ask(const struct cuda_device *d, CUdevice_attribute which, int *ret, struct error *e)
{
    CUresult r = cuda.DeviceGetAttribute(ret, which, d->ordinal);

    if (r == CUDA_ERROR_INVALID_VALUE)
        *ret = 0;
    return r == CUDA_ERROR_INVALID_VALUE ? 0 : cuda_check(NULL, r, "cuDeviceGetAttribute", e);
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
    info->shared = attribute(d, (CUdevice_attribute)ATTRIBUTE_MPS_ENABLED) != 0;
    d->registers_read_only = attribute(d, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) != 0;
    return 0;
}

/* A pool of our own, so that what it keeps is ours to decide. */
static int make_pool(struct cuda_device *d, struct error *e)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->ordinal}};
    cuuint64_t keep = POOL_KEEP_BYTES;
    int supported;

    if (ask(d, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, &supported, e) < 0)
        return -1;
    if (!supported)
        return 0;
    if (CUDA_OPEN_CALL(d, e, MemPoolCreate, &d->pool, &props) < 0)
        return -1;
    if (CUDA_OPEN_CALL(d, e, MemPoolSetAttribute, d->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) < 0) {
        cuda_on(d)->MemPoolDestroy(d->pool);
        return -1;
    }
    return 0;
}

/* The numbers fall with urgency. Normal work has the least one, which is that of other processes' default streams too:
 * graphs start later on any other (3.5 us on an H200). The server holds low work back while there is other. */
static int find_priorities(struct cuda_device *d, struct error *e)
{
    int least, greatest;

    if (CUDA_OPEN_CALL(d, e, CtxGetStreamPriorityRange, &least, &greatest) < 0)
        return -1;
    d->priorities[PRIORITY_LOW] = least;
    d->priorities[PRIORITY_HIGH] = greatest;
    d->priorities[PRIORITY_NORMAL] = least;
    return 0;
}

static unsigned occupancy(void *context, const char *kernel, unsigned block, unsigned shared)
{
    struct cuda_device *d = context;

    return cuda_kernels_occupancy(d, &d->kernels, kernel, block, shared);
}

static void init_launch(struct cuda_device *d)
{
    d->launch = (struct cuda_launch_device){
        .multiprocessors = d->base.info.compute_units,
        .max_shared_bytes = (unsigned)attribute(d, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        .occupancy = occupancy,
        .context = d,
    };
}

/* What lives in the context, which is current. */
static int populate(struct cuda_device *d, bool have_blaslt, struct error *e)
{
    if (cuda_kernels_load(d, &d->kernels, e) < 0)
        return -1;
    init_launch(d);
    cuda_code_find_limits(d);
    if (CUDA_OPEN_CALL(d, e, StreamCreate, &d->service, CU_STREAM_NON_BLOCKING) < 0)
        goto unload_kernels;
    if (CUDA_OPEN_CALL(d, e, StreamCreate, &d->capture, CU_STREAM_NON_BLOCKING) < 0)
        goto destroy_service;
    if (find_priorities(d, e) < 0 || cuda_flags_open(d, &d->flags, e) < 0)
        goto destroy_capture;
    if (make_pool(d, e) < 0)
        goto close_flags;
    d->waiters = cuda_waiters_new(d);
    if (!d->waiters) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the waiting threads' table");
        goto destroy_pool;
    }
    if (!d->pool)
        d->workspace_bytes = 0;
    d->blaslt = have_blaslt ? blaslt_new(d) : NULL;
    cuda_variants_init(&d->variants, d->blaslt != NULL);
    d->base.signals = d->flags.host != NULL;
    return 0;

destroy_pool:
    if (d->pool)
        cuda_on(d)->MemPoolDestroy(d->pool);
close_flags:
    cuda_flags_close(d, &d->flags);
destroy_capture:
    cuda_on(d)->StreamDestroy(d->capture);
destroy_service:
    cuda_on(d)->StreamDestroy(d->service);
unload_kernels:
    cuda_kernels_unload(d, &d->kernels);
    return -1;
}

static struct cuda_device *device_open(const struct backend_config *config, const struct backend_host *host, int number,
                                       bool have_blaslt, struct error *e)
{
    struct cuda_device *d = calloc(1, sizeof(*d));

    if (!d) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a device");
        return NULL;
    }
    d->base.backend = &cuda_backend;
    d->host = *host;
    d->workspace_bytes = config->cuda_workspace_bytes ? config->cuda_workspace_bytes : WORKSPACE_BYTES;
    pthread_mutex_init(&d->job_lock, NULL);
    pthread_mutex_init(&d->capture_lock, NULL);
    cuda_events_init(&d->events);
    list_init(&d->free_jobs);
    list_init(&d->busy);
    for (unsigned i = 0; i < PRIORITY_COUNT; i++)
        list_init(&d->idle_streams[i]);
    if (CUDA_DRIVER_CALL(e, DeviceGet, &d->ordinal, number) < 0 || describe(d, e) < 0)
        goto free_device;
    if (CUDA_DRIVER_CALL(e, DevicePrimaryCtxRetain, &d->context, d->ordinal) < 0)
        goto free_device;
    if (cuda_check(NULL, cuda_driver_enter(d->context), "cuCtxSetCurrent", e) < 0 || populate(d, have_blaslt, e) < 0)
        goto release_context;
    return d;

release_context:
    cuda.DevicePrimaryCtxRelease(d->ordinal);
free_device:
    cuda_events_destroy(d, &d->events);
    pthread_mutex_destroy(&d->capture_lock);
    pthread_mutex_destroy(&d->job_lock);
    free(d);
    return NULL;
}

/* 0 when there is nothing to use, which is no error. */
static int device_count(const struct backend_config *config)
{
    const char *path = config->cuda_driver ? config->cuda_driver : "libcuda.so.1";
    char why[256];
    int count = 0;
    CUresult r;

    if (strcmp(path, "none") == 0)
        return 0;
    if (cuda_driver_load(path, why, sizeof(why)) < 0) {
        char quoted[300];

        log_debug("cuda_unavailable", "reason=%s", log_quote(quoted, sizeof(quoted), why, strlen(why)));
        return 0;
    }
    r = cuda.DeviceGetCount(&count);
    if (r != CUDA_SUCCESS) {
        log_debug("cuda_unavailable", "driver=%s", cuda_result_name(r));
        return 0;
    }
    return count;
}

static bool load_blaslt(const struct backend_config *config)
{
    char why[256], quoted[300];

    if (blaslt_load(config->cuda_blaslt, why, sizeof(why)) == 0)
        return true;
    log_debug("cublaslt_unavailable", "reason=%s", log_quote(quoted, sizeof(quoted), why, strlen(why)));
    return false;
}

int cuda_open(const struct backend_config *config, const struct backend_host *host, struct backend_device **ret_devices,
              unsigned max, unsigned *ret_count, struct error *e)
{
    int count = device_count(config);
    bool have_blaslt = count > 0 && load_blaslt(config);
    unsigned opened = 0;

    /* One GPU that cannot be used (taken exclusively by another, too old) does not take the others away. */
    for (int i = 0; i < count && opened < max; i++) {
        struct cuda_device *d = device_open(config, host, i, have_blaslt, e);
        char quoted[300];

        if (d)
            ret_devices[opened++] = &d->base;
        else
            log_warning("cuda_device_skipped", "number=%d reason=%s", i,
                        log_quote(quoted, sizeof(quoted), e->message, strlen(e->message)));
    }
    *ret_count = opened;
    return 0;
}

void cuda_close(struct backend_device *base)
{
    struct cuda_device *d = cuda_device(base);

    if (d->abandoned) {
        cuda_device_leave(d);
        return;
    }
    /* On a broken context every call below fails, which is all that it can do. */
    d->waiters = cuda_waiters_free(d->waiters);
    cuda_jobs_close(d);
    d->blaslt = blaslt_free(d->blaslt);
    cuda_streams_close(d);
    cuda_events_destroy(d, &d->events);
    if (d->pool)
        cuda_on(d)->MemPoolDestroy(d->pool);
    cuda_flags_close(d, &d->flags);
    cuda_on(d)->StreamDestroy(d->capture);
    cuda_on(d)->StreamDestroy(d->service);
    cuda_kernels_unload(d, &d->kernels);
    cuda_driver_enter(NULL);
    cuda.DevicePrimaryCtxRelease(d->ordinal);
    pthread_mutex_destroy(&d->capture_lock);
    pthread_mutex_destroy(&d->job_lock);
    free(d);
}

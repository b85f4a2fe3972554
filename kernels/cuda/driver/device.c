/* Describes devices, makes their contexts and gives them back. */
#include "device.h"

#include <stdio.h>
#include <string.h>

#include "scratch.h"

enum { ATTRIBUTE_MPS_ENABLED = 133 /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which older headers do not have */ };

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

/* Under MPS the one process that has the device is the MPS server, through which its clients have contexts. */
static bool is_exclusive(const struct cuda_device *d)
{
    return cuda_device_attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == CU_COMPUTEMODE_EXCLUSIVE_PROCESS &&
           !d->base.info.shared;
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
    info->exclusive = is_exclusive(d);
    info->clusters = CUDA_HAS(LaunchKernelEx);
    d->registers_read_only = cuda_device_attribute(d, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) != 0;
    return cuda_scratch_describe(d, e);
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
    if (cuda_scratch_open(d, e) < 0)
        goto destroy_service;
    cuda_events_init(&d->events);
    return 0;

destroy_service:
    cuda_on(d)->StreamDestroy(d->service);
release_context:
    release_context(d);
    return -1;
}

void cuda_device_deactivate(struct cuda_device *d)
{
    cuda_events_destroy(d, &d->events);
    cuda_scratch_close(d);
    cuda_on(d)->StreamDestroy(d->service);
    release_context(d);
}

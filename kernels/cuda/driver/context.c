/* Enters contexts, and notes when one breaks. */
#include "device.h"

#include "util/log.h"

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

int cuda_enter(struct cuda_device *d, struct error *e)
{
    CUresult r;

    if (cuda_device_is_broken(d))
        return cuda_device_lost(d, e);
    r = cuda_driver_enter(d->context);
    if (r == CUDA_SUCCESS)
        return 0;
    /* A context that cannot be made current is of no use any more, whatever the reason. */
    cuda_device_break(d, r);
    return cuda_device_lost(d, e);
}

int cuda_device_attribute(const struct cuda_device *d, CUdevice_attribute which)
{
    int value = 0;

    return cuda.DeviceGetAttribute(&value, which, d->ordinal) == CUDA_SUCCESS ? value : 0;
}

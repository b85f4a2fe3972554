/* Owns the devices that were left behind. */
#include "abandon.h"

#include "device.h"
#include "job.h"
#include "waiter.h"

/* They stay until the process ends. */
static struct cuda_device *left_behind;

void cuda_abandon(struct backend_device *base, const struct error *why)
{
    struct cuda_device *d = cuda_device(base);

    if (d->abandoned)
        return;
    d->abandoned = true;
    d->abandoned_why = *why;
    cuda_device_break(d, CUDA_ERROR_LAUNCH_TIMEOUT);
}

void cuda_device_leave(struct cuda_device *d)
{
    cuda_waiters_mute(d);
    cuda_jobs_close(d);
    d->left_behind = left_behind;
    left_behind = d;
}

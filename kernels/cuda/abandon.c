/* Owns the devices that were left behind. */
#include "abandon.h"

#include "device.h"
#include "job.h"
#include "stream.h"
#include "util/clock.h"
#include "waiter.h"

/* They stay until the process ends. */
static struct cuda_device *left_behind;

/* Of the stream on which nothing has ended for the longest: other streams may go on beside a kernel that does not end.
 */
uint64_t cuda_progress_ns(struct backend_device *base)
{
    struct cuda_device *d = cuda_device(base);
    uint64_t oldest = clock_now_ns();

    list_for_each_safe (node, after, &d->busy) {
        const struct cuda_stream *s = list_entry(node, struct cuda_stream, link);

        if (s->progress_ns < oldest)
            oldest = s->progress_ns;
    }
    return oldest;
}

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

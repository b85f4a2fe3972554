#include "timed.h"

#include "base/fail.h"

static cuda_status between(const struct cuda_driver *d, cuda_queue stream, here_enqueue *enqueue, void *work,
                           const cuda_event events[2], float *ret_ms)
{
    cuda_status status = d->event_record(events[0], stream);

    if (!status)
        status = enqueue(d, work, stream);
    if (!status)
        status = d->event_record(events[1], stream);
    if (!status)
        status = d->event_synchronize(events[1]);
    return status ? status : d->event_elapsed(ret_ms, events[0], events[1]);
}

static enum kops_code wait_for_time(const struct cuda_driver *d, cuda_queue stream, here_enqueue *enqueue, void *work,
                                    double *ret_us, struct kops_error *e)
{
    cuda_event events[2] = {NULL, NULL};
    int capturing = 0, mode = CUDA_CAPTURE_RELAXED;
    float ms = 0;
    cuda_status status = d->stream_is_capturing(stream, &capturing);

    if (!status && capturing)
        return fail(
            e, KOPS_ERR_CAPTURING,
            "a launch on a stream under capture runs when the graph does, so it has no time now: leave timing out");
    cuda_exchange_capture_mode(d, &mode); /* another thread may capture */
    for (int i = 0; !status && i < 2; i++)
        status = d->event_create(&events[i], 0);
    if (!status)
        status = between(d, stream, enqueue, work, events, &ms);
    for (int i = 0; i < 2; i++)
        if (events[i])
            d->event_destroy(events[i]);
    cuda_exchange_capture_mode(d, &mode);
    *ret_us = (double)ms * 1e3;
    return status ? cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "a timed launch") : KOPS_OK;
}

enum kops_code here_timed(struct here_tally *tally, const struct here_counted *counted, const struct cuda_driver *d,
                          cuda_queue stream, here_enqueue *enqueue, void *work, double *ret_us, struct kops_error *e)
{
    const enum kops_code r = wait_for_time(d, stream, enqueue, work, ret_us, e);

    if (tally && r)
        here_tally_uncount(tally, counted->row);
    else if (tally)
        here_tally_time(tally, counted->row, *ret_us);
    return r;
}

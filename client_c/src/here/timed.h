/* Launches that were counted, sometimes timed; and those between two events, which are waited for. */
#ifndef KOPS_CLIENT_HERE_TIMED_H
#define KOPS_CLIENT_HERE_TIMED_H

#include "tally.h"

/* Puts it on the stream. */
typedef cuda_status here_enqueue(const struct cuda_driver *d, void *work, cuda_queue stream);

/* Enqueues it, timed where it is its turn. Where the driver refuses it it is not counted. `tally` NULL: it is not in
 * any case. */
static inline cuda_status here_enqueue_counted(struct here_tally *tally, const struct here_counted *counted,
                                               const struct cuda_driver *d, cuda_context context, cuda_queue stream,
                                               here_enqueue *enqueue, void *work)
{
    const bool timed = tally && counted->timed && here_tally_begin(tally, d, context, stream);
    const cuda_status status = enqueue(d, work, stream);

    if (timed)
        here_tally_end(tally, d, stream, counted->row);
    if (tally && status)
        here_tally_uncount(tally, counted->row);
    return status;
}

/* The same between two events, which are waited for: returns when it has ended. *ret_us: the time between them. Errors:
 * capturing, device_error. */
enum kops_code here_timed(struct here_tally *tally, const struct here_counted *counted, const struct cuda_driver *d,
                          cuda_queue stream, here_enqueue *enqueue, void *work, double *ret_us, struct kops_error *e);

#endif

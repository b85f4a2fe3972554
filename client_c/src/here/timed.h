/* Launches, counted and sometimes timed; and those between two events, which are waited for. */
#ifndef KOPS_CLIENT_HERE_TIMED_H
#define KOPS_CLIENT_HERE_TIMED_H

#include "tally.h"

/* Puts it on the stream. */
typedef cuda_status here_enqueue(const struct cuda_driver *d, void *work, cuda_queue stream);

/* Enqueues and counts it; `tally` NULL: it is not counted. *ret_due: it is time to tell the daemon. */
cuda_status here_counted(struct here_tally *tally, const struct cuda_driver *d, cuda_context context, cuda_queue stream,
                         here_enqueue *enqueue, void *work, const struct here_shapes *shapes, bool *ret_due);

/* Returns when it has ended. *ret_us: the time between the events. Errors: capturing, device_error. */
enum kops_code here_timed(const struct cuda_driver *d, cuda_queue stream, here_enqueue *enqueue, void *work,
                          double *ret_us, struct kops_error *e);

#endif

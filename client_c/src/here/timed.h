/* Launches between two events. */
#ifndef KOPS_CLIENT_HERE_TIMED_H
#define KOPS_CLIENT_HERE_TIMED_H

#include "cuda/cuda_driver.h"

/* Puts it on the stream. */
typedef cuda_status here_enqueue(const struct cuda_driver *d, void *work, cuda_queue stream);

/* Returns when it has ended. *ret_us: the time between the events. Errors: capturing, device_error. */
enum kops_code here_timed(const struct cuda_driver *d, cuda_queue stream, here_enqueue *enqueue, void *work,
                          double *ret_us, struct kops_error *e);

#endif

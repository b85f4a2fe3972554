/* What two events say too much of an execution between them: the front end of the GPU takes time to begin and end it.
 * Measured on kernels on nothing that also stamp their own times, when the context opens. Thread: loop. */
#ifndef KOPS_CUDA_OVERHEAD_H
#define KOPS_CUDA_OVERHEAD_H

#include <stdbool.h>

#include "gate.h"

struct cuda_overhead {
    double settled_us; /* where all was on the stream before the GPU began with it */
    double first_us; /* of an execution that a stream without work gets, and that is launched meanwhile; not smaller */
    double least_us; /* what a kernel on nothing takes */
    double lead_us;  /* from a gate's opening, by its stamp, until what is behind it and an event begins */
};

/* Leaves all zero where kernels cannot tell their times, or the device did not answer: events are then believed. The
 * service stream is used, and flags that no stream has yet; the context is current. */
void cuda_overhead_measure(struct cuda_device *d, const struct cuda_embedded *kernels, const struct cuda_flags *flags,
                           const struct cuda_gates *gates, struct cuda_overhead *ret_overhead);

/* What an execution took by itself, of the time between its events; NaN stays. Never less than a kernel on nothing
 * takes, nor more than the events say. */
double cuda_overhead_off(const struct cuda_overhead *o, double between_events_us, bool settled);

#endif

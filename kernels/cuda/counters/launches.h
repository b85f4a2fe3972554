/* What a piece of work launches: it is captured into a graph, whose nodes tell. Thread: any. */
#ifndef KOPS_CUDA_LAUNCHES_H
#define KOPS_CUDA_LAUNCHES_H

#include "compute/work.h"
#include "core/counters.h"

/* Fills ret->kernel, launch and has_launch for the kernel of that number (of ret->kernels) among the work's. Where the
 * driver does not tell, they stay as they are. Nothing is launched. */
void cuda_launches_describe(const struct cuda_queue *q, struct cuda_work *work, unsigned number,
                            struct backend_counters *ret);

#endif

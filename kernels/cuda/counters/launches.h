/* What a piece of work launches, and how many warps of a kernel fit on a multiprocessor. Thread: any. */
#ifndef KOPS_CUDA_LAUNCHES_H
#define KOPS_CUDA_LAUNCHES_H

#include "compute/work.h"
#include "core/counters.h"

/* Captures the work into a graph, whose nodes tell, and fills ret->kernel, launch and has_launch for the kernel of that
 * number (of ret->kernels). Where the driver does not tell, they stay as they are. Nothing is launched. */
void cuda_launches_describe(const struct cuda_queue *q, struct cuda_work *work, unsigned number,
                            struct backend_counters *ret);

/* Of one multiprocessor. */
struct occupancy_limits {
    uint32_t threads, blocks, registers, shared; /* shared: bytes */
    uint32_t reserved_shared;                    /* bytes of each block that the driver takes */
};

/* Sets launch->occupancy_pct and launch->limiter from its other members. Plain arithmetic. */
void occupancy_find(const struct occupancy_limits *limits, struct counter_launch *launch);

#endif

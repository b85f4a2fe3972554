/* Describes the kernels that work launches, and computes occupancy. Thread: any. */
#ifndef KOPS_CUDA_LAUNCHES_H
#define KOPS_CUDA_LAUNCHES_H

#include "compute/work.h"
#include "core/counters.h"

/* Captures the work into a graph, without launching it, and fills ret->kernel, launch and has_launch from the node of
 * kernel `number` (of ret->kernels). They stay unchanged where the driver gives no answer. */
void cuda_launches_describe(const struct cuda_queue *q, struct cuda_work *work, unsigned number,
                            struct backend_counters *ret);

/* Limits per multiprocessor. */
struct occupancy_limits {
    uint32_t threads, blocks, registers, shared; /* shared: bytes */
    uint32_t reserved_shared;                    /* bytes that the driver adds to each block */
};

/* Computes launch->occupancy_pct and launch->limiter from the other members. */
void occupancy_find(const struct occupancy_limits *limits, struct counter_launch *launch);

#endif

/* How many warps of a kernel fit on a multiprocessor, and what keeps more out. Plain arithmetic. */
#ifndef KOPS_CUDA_OCCUPANCY_H
#define KOPS_CUDA_OCCUPANCY_H

#include "core/counters.h"

/* Of one multiprocessor. */
struct occupancy_limits {
    uint32_t threads, blocks, registers, shared; /* shared: bytes */
    uint32_t reserved_shared;                    /* bytes of each block that the driver takes */
};

/* Sets launch->occupancy_pct and launch->limiter from its other members. */
void occupancy_find(const struct occupancy_limits *limits, struct counter_launch *launch);

#endif

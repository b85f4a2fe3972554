/* Counts hardware events of a step's kernels with CUPTI's range profiler, in several passes on copies of operands. */
#ifndef KOPS_CUDA_COUNT_H
#define KOPS_CUDA_COUNT_H

#include "compute/work.h"
#include "core/counters.h"

/* Fills *ret, whose `warm` the caller has set, and step->variant_used. The context is current; nothing else runs in
 * it. Errors: unsupported and permission_denied, whose messages say what is missing, limit_exceeded, out_of_memory,
 * device_error, device_lost. Thread: any, one at a time; takes some 30 times as long as the kernel. */
int cuda_count(const struct cuda_kernels *kernels, const struct cuda_queue *queue, struct step *step,
               struct backend_counters *ret, struct error *e);

/* Where only the administrator may read counters, a process takes them before it loads users' code, so that one later
 * count needs no privilege. load() needs no privilege; the thread that calls take() has it. Other processes cannot
 * use the device's counters until that count, or the process's end. The device is active. Errors: as cuda_count().
 * Thread: any. */
int cuda_counters_load(struct backend_device *base, struct error *e);
int cuda_counters_take(struct backend_device *base, struct error *e);

/* Limits per multiprocessor. */
struct occupancy_limits {
    uint32_t threads, blocks, registers, shared; /* shared: bytes */
    uint32_t reserved_shared;                    /* bytes that the driver adds to each block */
};

/* Computes launch->occupancy_pct and launch->limiter from the other members. */
void occupancy_find(const struct occupancy_limits *limits, struct counter_launch *launch);

#endif

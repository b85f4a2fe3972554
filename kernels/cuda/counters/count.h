/* Counting: one step's kernels under CUPTI's range profiler, as often as it needs, on copies of the operands. */
#ifndef KOPS_CUDA_COUNT_H
#define KOPS_CUDA_COUNT_H

#include "compute/work.h"
#include "core/counters.h"

/* Fills *ret, of which `warm` is set, and step->variant_used. The context is current; nothing else runs in it.
 * Errors: unsupported and permission_denied say what is missing, limit_exceeded, out_of_memory, device_error,
 * device_lost. Thread: any, one at a time; takes as long as the kernel runs, some 30 times. */
int cuda_count(const struct cuda_kernels *kernels, const struct cuda_queue *queue, struct step *step,
               struct backend_counters *ret, struct error *e);

/* Where counters are the administrator's, a process asks the driver before it knows code of users, so that one later
 * count needs no privilege: load() needs none, the thread that calls take() has it. Until that count, or the
 * process's end, no other process has the device's counters. The device is active. Errors as above. Thread: any. */
int cuda_counters_load(struct backend_device *base, struct error *e);
int cuda_counters_take(struct backend_device *base, struct error *e);

#endif

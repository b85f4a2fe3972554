/* Processes that have contexts on a device, by the driver's management library (NVML), loaded at run time. */
#ifndef KOPS_CUDA_OTHERS_H
#define KOPS_CUDA_OTHERS_H

#include <stdbool.h>
#include <stdint.h>

/* How many there are now, this one included. False: it cannot be known. Thread: one at a time. */
bool cuda_others_count(const char *uuid, uint32_t *ret);

#endif

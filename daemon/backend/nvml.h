/* Clocks, temperature and power of GPUs, from NVML, the driver's library for monitoring. NVML needs no context on a
 * GPU, so the daemon itself asks it. libnvidia-ml is loaded at the first question; a machine without it serves all the
 * same.
 *
 * Thread: any; questions wait for each other, and may block as long as the driver does. */
#ifndef KOPS_BACKEND_NVML_H
#define KOPS_BACKEND_NVML_H

#include "backend/conditions.h"

struct backend_device;

/* Reads the conditions of the GPU with device->info.uuid; backend->conditions() of the backends for GPUs. */
void nvml_conditions(struct backend_device *device, struct backend_conditions *ret);

#endif

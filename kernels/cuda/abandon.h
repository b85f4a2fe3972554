/* Work that never ends: how a device is left behind with it. The server notices it, by jobs of which nothing ends.
 *
 * The driver has no way to stop a kernel but the end of the process, and calls that wait for the device, such as
 * freeing memory or unloading code, would wait with it. So from abandon() on the driver is left alone: every way in
 * fails with device_lost, and what the device holds stays until the process ends, which should be by _exit(): the
 * driver's own handlers of exit() wait, too. Thread: loop. */
#ifndef KOPS_CUDA_ABANDON_H
#define KOPS_CUDA_ABANDON_H

#include "backend/backend.h"

struct cuda_device;

/* The vtable's abandon(). */
void cuda_abandon(struct backend_device *base, const struct error *why);

/* close() of an abandoned device: no thread is joined and nothing is freed that one may still use. */
void cuda_device_leave(struct cuda_device *d);

#endif

/* Client memory that is registered with the driver, so that the GPU copies to and from it directly.
 *
 * A pin belongs to one memfd mapping and is shared by all devices that use it, because a registration is process-wide:
 * each device's attachment holds a reference. Thread: any. */
#ifndef KOPS_CUDA_PIN_H
#define KOPS_CUDA_PIN_H

#include <cuda.h>

#include "backend/backend.h"

struct cuda_device;

struct cuda_pin_view {
    bool registered;       /* false: copies from it block, and it cannot be written to */
    CUdeviceptr on_device; /* where kernels see the mapping; only when registered */
};

/* Registers the mapping unless it is already, and attaches it to the device. A read-only mapping stays unregistered
 * where the device cannot register those. The context is current. */
int cuda_pin(struct cuda_device *d, struct backend_memory *memory, struct cuda_pin_view *ret_view, struct error *e);

/* Where kernels see a mapping that memory_attach() attached. Thread: any. */
CUdeviceptr cuda_pin_address(const struct cuda_device *d, const struct backend_memory *memory);

/* The vtable's memory_attach() and memory_detach(). */
int cuda_memory_attach(struct backend_device *base, struct backend_memory *memory, struct error *e);
void cuda_memory_detach(struct backend_device *base, struct backend_memory *memory);

#endif

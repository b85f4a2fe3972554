/* Registrations: shared host memory that is registered with the driver (page-locked), so that the GPU copies it
 * directly. A registration belongs to one memfd mapping of the process; each device that uses the mapping has a
 * reference. Thread: any. */
#ifndef KOPS_CUDA_REGISTRATION_H
#define KOPS_CUDA_REGISTRATION_H

#include "driver/device.h"

struct cuda_registered {
    bool registered;       /* false: copies from the mapping block, and the GPU cannot write to it */
    CUdeviceptr on_device; /* the address for kernels; only when registered */
};

/* Registers the mapping, if it is not registered yet, and attaches it to the device. A read-only mapping stays
 * unregistered where the device cannot register read-only memory. The context is current. */
int cuda_register(struct cuda_device *d, struct backend_memory *memory, struct cuda_registered *ret, struct error *e);

/* Whether cuda_register() has nothing to do and does not block. The caller keeps the mapping open. */
bool cuda_is_registered(const struct cuda_device *d, const struct backend_memory *memory);

/* Returns the address for kernels of a mapping that memory_attach() attached. */
CUdeviceptr cuda_registered_address(const struct cuda_device *d, const struct backend_memory *memory);

/* Functions of struct backend. */
int cuda_memory_attach(struct backend_device *base, struct backend_memory *memory, struct error *e);
void cuda_memory_detach(struct backend_device *base, struct backend_memory *memory);

#endif

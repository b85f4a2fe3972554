/* Virtual memory: allocations that the daemon makes, and allocations of other processes, mapped one behind the other.
 */
#ifndef KOPS_CUDA_VMM_H
#define KOPS_CUDA_VMM_H

#include "mapping.h"

/* Functions of struct backend. */
int cuda_memory_alloc(struct backend_device *base, uint64_t size, struct backend_memory **ret_memory, int *ret_fd,
                      struct error *e);
int cuda_memory_extend(struct backend_memory *memory, const struct backend_import *more, uint64_t *ret_size,
                       struct error *e);

/* The context is current. */
int cuda_vmm_import(struct cuda_device *d, const struct backend_import *import, struct cuda_memory **ret_memory,
                    struct error *e);
void cuda_vmm_close(struct cuda_memory *m);

#endif

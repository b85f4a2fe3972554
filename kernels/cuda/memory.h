/* Device memory of other processes, and ours that they may map. Thread: any. */
#ifndef KOPS_CUDA_MEMORY_H
#define KOPS_CUDA_MEMORY_H

#include "backend/backend.h"

int cuda_memory_import(struct backend_device *base, const struct backend_import *import,
                       struct backend_memory **ret_memory, struct error *e);
int cuda_memory_alloc(struct backend_device *base, uint64_t size, struct backend_memory **ret_memory, int *ret_fd,
                      struct error *e);
void cuda_memory_close(struct backend_memory *memory);

#endif

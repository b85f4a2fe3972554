/* Device memory of other processes, whatever its kind. */
#ifndef KOPS_CUDA_IMPORT_H
#define KOPS_CUDA_IMPORT_H

#include "backend/backend.h"

/* Functions of struct backend. */
int cuda_memory_import(struct backend_device *base, const struct backend_import *import,
                       struct backend_memory **ret_memory, struct error *e);
void cuda_memory_close(struct backend_memory *memory);
unsigned cuda_memory_kinds(struct backend_device *base);

#endif

/* Memory of other processes that CUDA IPC handles name. Thread: any; the device's context is current. */
#ifndef KOPS_CUDA_IPC_H
#define KOPS_CUDA_IPC_H

#include "mapping.h"

int cuda_ipc_import(struct cuda_device *d, const struct backend_import *import, struct cuda_memory **ret_memory,
                    struct error *e);

/* Opens the memory's handle in the context of another device. */
CUresult cuda_ipc_open(struct cuda_device *d, const struct cuda_memory *m, CUdeviceptr *ret_address);

/* Closes a handle. The device is lost when the driver does not: another handle of the same bytes, which may mean other
 * memory by then, would open the old memory. */
void cuda_ipc_close(struct cuda_device *d, CUdeviceptr address);

#endif

/* Memory of other processes' pools (cudaMallocAsync). Thread: any; the device's context is current. */
#ifndef KOPS_CUDA_POOL_H
#define KOPS_CUDA_POOL_H

#include "mapping.h"

/* Whether the driver can open pools of other processes at all. */
bool cuda_pools_import(void);
int cuda_pool_import(struct cuda_device *d, const struct backend_import *import, struct cuda_memory **ret_memory,
                     struct error *e);
void cuda_pool_close(struct cuda_device *d, struct cuda_memory *m);
/* Lets another device use the pool's memory. */
CUresult cuda_pool_allow(const struct cuda_pool *pool, const struct cuda_device *peer);

#endif

/* Launches users' kernels. */
#include "user_kernel.h"

#include <string.h>

const char cuda_variant_user[] = "user";

int cuda_user_check(const struct backend_device_info *info, const struct plan *plan, struct error *e)
{
    if (plan->kernel.cluster[0] && !info->clusters)
        return error_set(e, ERROR_UNSUPPORTED, "the driver of %s is too old for clusters", info->name);
    return 0;
}

void cuda_user_launch(const struct plan_kernel *k, const uint64_t *addresses, struct cuda_launch *ret_launch)
{
    struct cuda_launch *l = ret_launch;

    l->kernel = l->variant = cuda_variant_user;
    memcpy(l->grid, k->grid, sizeof(l->grid));
    memcpy(l->block, k->block, sizeof(l->block));
    l->shared_bytes = k->shared_bytes;
    l->params_size = k->param_bytes;
    memcpy(l->params, k->params, k->param_bytes);
    for (unsigned i = 0; i < k->n_pointers; i++)
        memcpy(l->params + k->pointers[i], &addresses[i], sizeof(addresses[i]));
}

static CUresult launch_clusters(const struct cuda_queue *q, const struct plan_kernel *k, const struct cuda_launch *l,
                                void **extra)
{
    const unsigned *cluster = k->cluster;
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                   .value.clusterDim = {cluster[0], cluster[1], cluster[2]}};
    CUlaunchConfig config = {.gridDimX = l->grid[0],
                             .gridDimY = l->grid[1],
                             .gridDimZ = l->grid[2],
                             .blockDimX = l->block[0],
                             .blockDimY = l->block[1],
                             .blockDimZ = l->block[2],
                             .sharedMemBytes = l->shared_bytes,
                             .hStream = q->stream,
                             .attrs = &attribute,
                             .numAttrs = 1};

    return cuda_on(q->device)->LaunchKernelEx(&config, (CUfunction)(uintptr_t)k->function, NULL, extra);
}

static CUresult launch(const struct cuda_queue *q, const struct plan_kernel *k, const struct cuda_launch *l,
                       void **extra)
{
    if (k->cluster[0])
        return launch_clusters(q, k, l, extra);
    return cuda_on(q->device)->LaunchKernel((CUfunction)(uintptr_t)k->function, l->grid[0], l->grid[1], l->grid[2],
                                            l->block[0], l->block[1], l->block[2], l->shared_bytes, q->stream, NULL,
                                            extra);
}

/* The server has checked the device's limits before. The driver also refuses for reasons that depend on the kernel: its
 * registers, its launch bounds, the clusters that it was compiled for. */
static int refuse_launch(struct cuda_device *d, CUresult r, const struct cuda_launch *l, struct error *e)
{
    switch (r) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case CUDA_ERROR_INVALID_CLUSTER_SIZE:
    case CUDA_ERROR_NOT_SUPPORTED:
        error_set(e, ERROR_OUT_OF_RANGE,
                  "the driver refuses a grid of %u x %u x %u blocks of %u x %u x %u threads with %u bytes of shared "
                  "memory for this kernel (%s)",
                  l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared_bytes,
                  cuda_result_name(r));
        return error_detail_text(e, "driver", cuda_result_name(r));
    default:
        return cuda_fail(d, r, "cuLaunchKernel", e);
    }
}

int cuda_user_issue(const struct cuda_queue *q, const struct plan_kernel *k, struct cuda_launch *l, struct error *e)
{
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, l->params, CU_LAUNCH_PARAM_BUFFER_SIZE, &l->params_size,
                     CU_LAUNCH_PARAM_END};
    CUresult r = launch(q, k, l, l->params_size ? extra : NULL);

    return r == CUDA_SUCCESS ? 0 : refuse_launch(q->device, r, l, e);
}

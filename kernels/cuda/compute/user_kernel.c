/* Launches users' kernels. */
#include "user_kernel.h"

#include <string.h>

#include "embedded.h"

_Static_assert((int)KERNEL_PARAM_BYTES <= (int)CUDA_LAUNCH_PARAMS_MAX, "a launch has room for them");

const char cuda_variant_user[] = "user";

int cuda_user_check(const struct backend_device_info *info, const struct plan *plan, struct error *e)
{
    if (plan->kernel.cluster[0] && !info->clusters)
        return error_set(e, ERROR_UNSUPPORTED, "the driver of %s is too old for clusters", info->name);
    return 0;
}

/* The tensors were checked against all that the driver's documentation asks for. */
static int encode(const struct plan_kernel *k, struct cuda_launch *l, struct error *e)
{
    const int status = cuda_ops_encode_params(k, l->params, cuda_embedded_encoder);

    if (!status)
        return 0;
    error_set(e, ERROR_INVALID_ARGUMENT,
              "the driver encodes no tensor map for these tensors (%s): look at their strides and boxes",
              cuda_result_name((CUresult)status));
    return error_detail_text(e, "driver", cuda_result_name((CUresult)status));
}

int cuda_user_launch(const struct plan_kernel *k, const uint64_t *addresses, struct cuda_launch *ret_launch,
                     struct error *e)
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
    return k->maps ? encode(k, l, e) : 0;
}

static CUresult launch_clusters(const struct cuda_queue *q, const struct plan_kernel *k, const struct cuda_launch *l,
                                void **params, void **extra)
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

    return cuda_on(q->device)->LaunchKernelEx(&config, (CUfunction)(uintptr_t)k->function, params, extra);
}

static CUresult launch(const struct cuda_queue *q, const struct plan_kernel *k, const struct cuda_launch *l,
                       void **params, void **extra)
{
    if (k->cluster[0])
        return launch_clusters(q, k, l, params, extra);
    return cuda_on(q->device)->LaunchKernel((CUfunction)(uintptr_t)k->function, l->grid[0], l->grid[1], l->grid[2],
                                            l->block[0], l->block[1], l->block[2], l->shared_bytes, q->stream, params,
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
    void *list[KERNELS_PARAMS_MAX], **params = cuda_ops_list_params(k, l->params, list);
    CUresult r = launch(q, k, l, params, params || !l->params_size ? NULL : extra);

    return r == CUDA_SUCCESS ? 0 : refuse_launch(q->device, r, l, e);
}

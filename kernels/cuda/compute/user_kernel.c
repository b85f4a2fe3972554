/* Launches users' kernels. */
#include "user_kernel.h"

#include <string.h>

#include "core/kernel.h"
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

static void fill(const struct plan_kernel *k, const uint64_t *addresses, struct cuda_launch *l)
{
    l->kernel = l->variant = cuda_variant_user;
    memcpy(l->grid, k->grid, sizeof(l->grid));
    memcpy(l->block, k->block, sizeof(l->block));
    l->shared_bytes = k->shared_bytes;
    l->params_size = k->param_bytes;
    memcpy(l->params, k->params, k->param_bytes);
    for (unsigned i = 0; i < k->n_pointers; i++)
        memcpy(l->params + k->pointers[i], &addresses[i], sizeof(addresses[i]));
}

/* ---- launches with attributes ---- */

enum { MAX_ATTRIBUTES = 3 };

/* The launch's configuration; `attributes` have room for all. */
static CUlaunchConfig configure(const struct cuda_launch *l, const struct plan_kernel *k, bool early, CUstream stream,
                                CUlaunchAttribute *attributes)
{
    const unsigned *cluster = k->cluster;
    CUlaunchConfig config = {.gridDimX = l->grid[0],
                             .gridDimY = l->grid[1],
                             .gridDimZ = l->grid[2],
                             .blockDimX = l->block[0],
                             .blockDimY = l->block[1],
                             .blockDimZ = l->block[2],
                             .sharedMemBytes = l->shared_bytes,
                             .hStream = stream,
                             .attrs = attributes};

    if (cluster[0])
        attributes[config.numAttrs++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                                            .value.clusterDim = {cluster[0], cluster[1], cluster[2]}};
    if (k->cooperative)
        attributes[config.numAttrs++] =
            (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
    if (early)
        attributes[config.numAttrs++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                                            .value.programmaticStreamSerializationAllowed = 1};
    return config;
}

/* How many blocks of the kernel the device runs at one time. */
static int find_room(struct cuda_device *d, const struct plan_kernel *k, const struct cuda_launch *l,
                     uint64_t *ret_blocks, struct error *e)
{
    const CUfunction function = (CUfunction)(uintptr_t)k->function;
    CUlaunchAttribute attributes[MAX_ATTRIBUTES];
    const CUlaunchConfig config = configure(l, k, false, NULL, attributes);
    int n = 0;

    if (k->cluster[0]) {
        if (CUDA_CALL(d, e, OccupancyMaxActiveClusters, &n, function, &config) < 0)
            return -1;
        *ret_blocks = (uint64_t)(n > 0 ? n : 0) * k->cluster[0] * k->cluster[1] * k->cluster[2];
        return 0;
    }
    if (CUDA_CALL(d, e, OccupancyMaxActiveBlocksPerMultiprocessor, &n, function,
                  (int)(l->block[0] * l->block[1] * l->block[2]), l->shared_bytes) < 0)
        return -1;
    *ret_blocks = (uint64_t)(n > 0 ? n : 0) * d->base.info.compute_units;
    return 0;
}

int cuda_user_prepare(struct cuda_device *d, const struct plan_kernel *k, const uint64_t *addresses,
                      struct cuda_launch *ret_launch, struct error *e)
{
    uint64_t room;

    fill(k, addresses, ret_launch);
    if (k->cooperative && (find_room(d, k, ret_launch, &room, e) < 0 || kernel_check_cooperative(k, room, e) < 0))
        return -1;
    return k->maps ? encode(k, ret_launch, e) : 0;
}

static CUresult launch(const struct cuda_queue *q, const struct plan_kernel *k, const struct cuda_launch *l, bool early,
                       void **params, void **extra)
{
    const CUfunction function = (CUfunction)(uintptr_t)k->function;
    CUlaunchAttribute attributes[MAX_ATTRIBUTES];
    CUlaunchConfig config;

    if (!k->cluster[0] && !k->cooperative && !early)
        return cuda_on(q->device)->LaunchKernel(function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1],
                                                l->block[2], l->shared_bytes, q->stream, params, extra);
    config = configure(l, k, early, q->stream, attributes);
    return cuda_on(q->device)->LaunchKernelEx(&config, function, params, extra);
}

/* The server has checked the device's limits before. The driver also refuses for reasons that depend on the kernel: its
 * registers, its launch bounds, the clusters that it was compiled for. */
static int refuse_launch(struct cuda_device *d, CUresult r, const struct cuda_launch *l, struct error *e)
{
    switch (r) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case CUDA_ERROR_INVALID_CLUSTER_SIZE:
    case CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: /* with MPS a process may have a part of the device */
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

int cuda_user_issue(const struct cuda_queue *q, const struct plan_kernel *k, bool early, struct cuda_launch *l,
                    struct error *e)
{
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, l->params, CU_LAUNCH_PARAM_BUFFER_SIZE, &l->params_size,
                     CU_LAUNCH_PARAM_END};
    void *list[KERNELS_PARAMS_MAX], **params = cuda_ops_list_params(k, l->params, list);
    CUresult r = launch(q, k, l, early, params, params || !l->params_size ? NULL : extra);

    return r == CUDA_SUCCESS ? 0 : refuse_launch(q->device, r, l, e);
}

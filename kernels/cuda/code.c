/* Owns the modules of users' code, and how its functions are launched. */
#include "code.h"

#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "image.h"
#include "stream.h"
#include "work.h"

enum {
    CLUSTER_PORTABLE = 8, /* blocks that every device with clusters takes */
    CLUSTER_LARGE = 16    /* where kernels may ask for more than that */
};

const char cuda_variant_user[] = "user";

struct backend_code {
    CUmodule module;
};

/* ---- loading ---- */

static int refuse_arch(const struct cuda_device *d, const struct cuda_image *image, struct error *e)
{
    error_set(e, ERROR_UNSUPPORTED, "the code is for %s and does not run on %s, which is %s: compile it for that",
              image->arch, d->base.info.name, d->base.info.arch);
    error_detail_text(e, "arch", image->arch);
    return error_detail_text(e, "device_arch", d->base.info.arch);
}

static int refuse(struct cuda_device *d, CUresult r, const struct cuda_image *image, struct error *e)
{
    switch (r) {
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
        return refuse_arch(d, image, e);
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_INVALID_SOURCE:
    case CUDA_ERROR_INVALID_VALUE:
        error_set(e, ERROR_INVALID_ARGUMENT, "the driver cannot read the code for %s: compile it again", image->arch);
        return error_detail_text(e, "driver", cuda_result_name(r));
    case CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND:
    case CUDA_ERROR_NOT_FOUND:
        error_set(e, ERROR_INVALID_ARGUMENT, "the code uses a function that it neither has nor finds on the device");
        return error_detail_text(e, "driver", cuda_result_name(r));
    default:
        return cuda_fail(d, r, "cuModuleLoadData", e);
    }
}

int cuda_code_load(struct backend_device *base, const void *image, size_t size, struct backend_code **ret_code,
                   struct error *e)
{
    struct cuda_device *d = cuda_device(base);
    struct backend_code *code;
    struct cuda_image about;
    CUresult r;

    if (cuda_image_read(image, size, &about, e) < 0 || cuda_enter(d, e) < 0)
        return -1;
    code = calloc(1, sizeof(*code));
    if (!code)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a module's record");
    r = cuda_on(d)->ModuleLoadData(&code->module, image);
    if (r != CUDA_SUCCESS) {
        free(code);
        return refuse(d, r, &about, e);
    }
    *ret_code = code;
    return 0;
}

void cuda_code_unload(struct backend_device *base, struct backend_code *code)
{
    struct cuda_device *d = cuda_device(base);
    struct error ignored;

    /* On a broken context the call does nothing, behind a kernel that never ends it would not return. */
    if (cuda_enter(d, &ignored) == 0)
        cuda_on(d)->ModuleUnload(code->module);
    free(code);
}

/* ---- functions ---- */

static int attribute(struct cuda_device *d, CUfunction function, CUfunction_attribute which, unsigned *ret_value,
                     struct error *e)
{
    int value;

    if (CUDA_CALL(d, e, FuncGetAttribute, &value, which, function) < 0)
        return -1;
    *ret_value = value > 0 ? (unsigned)value : 0;
    return 0;
}

static int describe(struct cuda_device *d, CUfunction function, struct backend_function *f, struct error *e)
{
    const struct {
        CUfunction_attribute which;
        unsigned *into;
    } wanted[] = {{CU_FUNC_ATTRIBUTE_NUM_REGS, &f->registers},
                  {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &f->static_shared},
                  {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &f->local_bytes},
                  {CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, &f->const_bytes},
                  {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &f->max_threads}};

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (attribute(d, function, wanted[i].which, wanted[i].into, e) < 0)
            return -1;
    return 0;
}

/* Launches may ask for all that the device has; by itself this changes nothing. */
static int allow_all(struct cuda_device *d, CUfunction function, const struct backend_function *f, struct error *e)
{
    const unsigned most = d->limits.max_shared;

    if (f->static_shared > most)
        return error_set(e, ERROR_OUT_OF_RANGE, "the kernel has %u bytes of static shared memory, %s has %u a block",
                         f->static_shared, d->base.info.name, most);
    if (CUDA_CALL(d, e, FuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                  (int)(most - f->static_shared)) < 0)
        return -1;
    if (d->limits.max_cluster > CLUSTER_PORTABLE)
        return CUDA_CALL(d, e, FuncSetAttribute, function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    return 0;
}

int cuda_code_function(struct backend_device *base, struct backend_code *code, const char *lowered,
                       struct backend_function *ret_function, struct error *e)
{
    struct cuda_device *d = cuda_device(base);
    struct backend_function f = {0};
    CUfunction function;
    CUresult r;

    if (cuda_enter(d, e) < 0)
        return -1;
    r = cuda_on(d)->ModuleGetFunction(&function, code->module, lowered);
    if (r == CUDA_ERROR_NOT_FOUND)
        return error_set(e, ERROR_INVALID_ARGUMENT, "the code has no kernel %.128s", lowered);
    if (cuda_check(d, r, "cuModuleGetFunction", e) < 0)
        return -1;
    /* Eager even where the environment asks for lazy loading: the first launch must not wait for the device. */
    if (CUDA_HAS(FuncLoad) && CUDA_CALL(d, e, FuncLoad, function) < 0)
        return -1;
    if (describe(d, function, &f, e) < 0 || allow_all(d, function, &f, e) < 0)
        return -1;
    f.handle = function;
    *ret_function = f;
    return 0;
}

/* ---- limits ---- */

static unsigned device_attribute(const struct cuda_device *d, CUdevice_attribute which)
{
    int value = 0;

    return cuda.DeviceGetAttribute(&value, which, d->ordinal) == CUDA_SUCCESS && value > 0 ? (unsigned)value : 0;
}

/* Generations 9 and 10 take 16 blocks where a kernel allows it, others that have clusters 8. */
static unsigned find_max_cluster(const struct cuda_device *d)
{
    unsigned major = device_attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);

    if (!CUDA_HAS(LaunchKernelEx) || !device_attribute(d, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH))
        return 0;
    return major == 9 || major == 10 ? CLUSTER_LARGE : CLUSTER_PORTABLE;
}

void cuda_code_find_limits(struct cuda_device *d)
{
    static const CUdevice_attribute block[] = {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                                               CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z};
    static const CUdevice_attribute grid[] = {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                                              CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z};

    d->limits = (struct kernel_limits){
        .max_threads = device_attribute(d, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        .max_shared = device_attribute(d, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        .multiprocessors = d->base.info.compute_units,
        .max_cluster = find_max_cluster(d),
    };
    for (unsigned i = 0; i < 3; i++) {
        d->limits.max_block[i] = device_attribute(d, block[i]);
        d->limits.max_grid[i] = device_attribute(d, grid[i]);
    }
}

void cuda_kernel_limits(struct backend_device *base, struct kernel_limits *ret_limits)
{
    *ret_limits = cuda_device(base)->limits;
}

/* ---- launching ---- */

int cuda_code_check(struct cuda_device *d, const struct plan *plan, struct error *e)
{
    if (plan->kernel.cluster[0] && !CUDA_HAS(LaunchKernelEx))
        return error_set(e, ERROR_UNSUPPORTED, "the driver of %s is too old for clusters", d->base.info.name);
    return 0;
}

void cuda_code_prepare(struct cuda_work *work)
{
    const struct plan_kernel *k = &work->plan->kernel;
    struct cuda_launch *l = &work->launch;

    l->kernel = l->variant = cuda_variant_user;
    memcpy(l->grid, k->grid, sizeof(l->grid));
    memcpy(l->block, k->block, sizeof(l->block));
    l->shared_bytes = k->shared_bytes;
    l->params_size = k->param_bytes;
    memcpy(l->params, k->params, k->param_bytes);
    for (unsigned i = 0; i < k->n_pointers; i++)
        memcpy(l->params + k->pointers[i], &work->addresses[i], sizeof(work->addresses[i]));
    work->function = k->function->handle;
    work->variant = cuda_variant_user;
}

static CUresult launch_clusters(const struct cuda_stream *s, const struct cuda_work *work, void **extra)
{
    const struct cuda_launch *l = &work->launch;
    const unsigned *cluster = work->plan->kernel.cluster;
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                   .value.clusterDim = {cluster[0], cluster[1], cluster[2]}};
    CUlaunchConfig config = {.gridDimX = l->grid[0],
                             .gridDimY = l->grid[1],
                             .gridDimZ = l->grid[2],
                             .blockDimX = l->block[0],
                             .blockDimY = l->block[1],
                             .blockDimZ = l->block[2],
                             .sharedMemBytes = l->shared_bytes,
                             .hStream = s->stream,
                             .attrs = &attribute,
                             .numAttrs = 1};

    return cuda_on(s->device)->LaunchKernelEx(&config, work->function, NULL, extra);
}

static CUresult launch(const struct cuda_stream *s, const struct cuda_work *work, void **extra)
{
    const struct cuda_launch *l = &work->launch;

    if (work->plan->kernel.cluster[0])
        return launch_clusters(s, work, extra);
    return cuda_on(s->device)->LaunchKernel(work->function, l->grid[0], l->grid[1], l->grid[2], l->block[0],
                                            l->block[1], l->block[2], l->shared_bytes, s->stream, NULL, extra);
}

/* The device's own limits were checked before; what is left depends on the kernel: its registers, its launch bounds,
 * the clusters that it was compiled for. */
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

int cuda_code_issue(struct cuda_stream *stream, struct cuda_work *work, struct error *e)
{
    struct cuda_launch *l = &work->launch;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, l->params, CU_LAUNCH_PARAM_BUFFER_SIZE, &l->params_size,
                     CU_LAUNCH_PARAM_END};
    CUresult r = launch(stream, work, l->params_size ? extra : NULL);

    return r == CUDA_SUCCESS ? 0 : refuse_launch(stream->device, r, l, e);
}

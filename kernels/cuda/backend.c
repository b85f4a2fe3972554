/* The backend's table of functions: the executor's view of this folder. */
#include "compute/check.h"
#include "compute/module.h"
#include "counters/count.h"
#include "gpu.h"
#include "memory/import.h"
#include "memory/peer.h"
#include "memory/registration.h"
#include "memory/vmm.h"
#include "tune/tune.h"

static int gpu_open_all(const struct backend_config *config, const struct backend_host *host,
                        struct backend_device **ret_devices, unsigned max, unsigned *ret_count, struct error *e)
{
    (void)e; /* a machine without a usable GPU is no error */
    return cuda_gpu_open_all(&cuda_backend.base, config, host, ret_devices, max, ret_count);
}

static const char *const *gpu_variants(struct backend_device *base, const struct op *op, enum dtype dtype)
{
    return cuda_variants_find(&cuda_gpu(base)->kernels.variants, op, dtype);
}

static int gpu_stream_new(struct backend_device *base, enum backend_priority priority,
                          struct backend_stream **ret_stream, struct error *e)
{
    return cuda_executor_stream_new(&cuda_gpu(base)->executor, priority, ret_stream, e);
}

static bool gpu_needs_prepare(struct backend_device *base, const struct backend_job *job)
{
    return cuda_needs_prepare(&cuda_gpu(base)->executor, job);
}

static unsigned gpu_poll(struct backend_device *base)
{
    return cuda_poll(&cuda_gpu(base)->executor);
}

static void gpu_arm(struct backend_device *base)
{
    cuda_arm(&cuda_gpu(base)->executor);
}

static int gpu_code_function(struct backend_device *base, struct backend_code *code, const char *lowered,
                             struct backend_function *ret_function, struct error *e)
{
    struct cuda_gpu *gpu = cuda_gpu(base);

    return cuda_module_function(&gpu->device, &gpu->kernels.limits, code, lowered, ret_function, e);
}

static void gpu_kernel_limits(struct backend_device *base, struct kernel_limits *ret_limits)
{
    *ret_limits = cuda_gpu(base)->kernels.limits;
}

static int gpu_memory_free(struct backend_device *base, uint64_t *ret_bytes)
{
    return cuda_device_memory_free(cuda_device(base), ret_bytes);
}

static int gpu_tune(struct backend_device *base, const struct tuning_request *request, struct tuning_pace *pace,
                    struct tuning_result *ret, struct error *e)
{
    return cuda_tune(&cuda_gpu(base)->kernels, request, pace, ret, e);
}

const struct gpu_backend cuda_backend = {
    .base =
        {
            .abi = BACKEND_ABI,
            .name = "cuda",
            .execution_key = "gpu_us",
            .spin = true,
            .open = gpu_open_all,
            .close = cuda_gpu_close,
            .variants = gpu_variants,
            .memory_import = cuda_memory_import,
            .memory_alloc = cuda_memory_alloc,
            .memory_close = cuda_memory_close,
            .memory_detach = cuda_memory_detach,
            .memory_attach = cuda_memory_attach,
            .stream_new = gpu_stream_new,
            .stream_free = cuda_stream_free,
            .check = cuda_check_step,
            .submit = cuda_submit,
            .program_free = cuda_program_free,
            .poll = gpu_poll,
            .arm = gpu_arm,
            .memory_kinds = cuda_memory_kinds,
            .memory_extend = cuda_memory_extend,
            .can_access = cuda_can_access,
            .code_load = cuda_module_load,
            .code_unload = cuda_module_unload,
            .code_function = gpu_code_function,
            .kernel_limits = gpu_kernel_limits,
            .image = cuda_embedded_image,
            .tune = gpu_tune,
            .tunes = cuda_tunes,
            .memory_free = gpu_memory_free,
        },
    .needs_prepare = gpu_needs_prepare,
    .prepare = cuda_prepare,
    .activate = cuda_gpu_activate,
    .counters_load = cuda_counters_load,
    .counters_take = cuda_counters_take,
};

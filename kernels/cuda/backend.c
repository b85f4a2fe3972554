/* The backend's table of functions, and the GPUs of the machine. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blaslt/blaslt.h"
#include "compute/user_kernel.h"
#include "compute/work.h"
#include "counters/count.h"
#include "driver/driver.h"
#include "gpu.h"
#include "memory/mapping.h"
#include "memory/operand.h"
#include "times/records.h"
#include "tune/tune.h"
#include "util/clock.h"
#include "util/log.h"

/* ---- GPUs ---- */

static struct cuda_gpu *gpu_open(const struct backend_config *config, const struct backend_host *host, int number,
                                 bool have_blaslt, struct error *e)
{
    struct cuda_gpu *gpu = calloc(1, sizeof(*gpu));

    if (!gpu) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a device");
        return NULL;
    }
    gpu->device.base.backend = &cuda_backend.base;
    gpu->cupti_early = config->cuda_cupti_early;
    if (cuda_device_describe(&gpu->device, number, host, e) < 0) {
        free(gpu);
        return NULL;
    }
    gpu->device.base.counts = true; /* a job gets an error where counters are not available */
    gpu->device.base.signals = cuda_flags_are_supported(&gpu->device);
    gpu->device.repack_bytes = gpu->device.has_pools ? config->cuda_repack_bytes : 0;
    cuda_kernels_describe(&gpu->kernels, &gpu->device, have_blaslt, config);
    return gpu;
}

static int gpu_activate(struct backend_device *base, struct error *e)
{
    struct cuda_gpu *gpu = cuda_gpu(base);
    const uint64_t begin_ns = clock_now_ns();
    uint64_t context_ns, kernels_ns;

    if (cuda_device_activate(&gpu->device, e) < 0)
        return -1;
    context_ns = clock_now_ns();
    if (cuda_embedded_load(&gpu->device, &gpu->kernels.embedded, e) < 0)
        goto deactivate;
    kernels_ns = clock_now_ns();
    if (cuda_executor_open(&gpu->executor, &gpu->device, &gpu->kernels, e) < 0)
        goto unload_kernels;
    if (gpu->cupti_early)
        cuda_records_start();
    log_info("cuda_active", "device=%s context_ms=%.1f kernels_ms=%.1f rest_ms=%.1f", base->info.uuid,
             (double)(context_ns - begin_ns) / 1e6, (double)(kernels_ns - context_ns) / 1e6,
             (double)(clock_now_ns() - kernels_ns) / 1e6);
    return 0;

unload_kernels:
    cuda_embedded_unload(&gpu->device, &gpu->kernels.embedded);
deactivate:
    cuda_device_deactivate(&gpu->device);
    return -1;
}

/* A machine without a GPU usually has no driver. */
static void say_why_not(const char *why)
{
    char quoted[300];

    log_quote(quoted, sizeof(quoted), why, strlen(why));
    if (access("/dev/nvidiactl", F_OK) == 0)
        log_warning("cuda_unavailable", "reason=%s", quoted);
    else
        log_debug("cuda_unavailable", "reason=%s", quoted);
}

static int device_count(const struct backend_config *config)
{
    const char *path = config->cuda_driver ? config->cuda_driver : "libcuda.so.1";
    char why[256];
    int count = 0;
    CUresult r;

    if (strcmp(path, "none") == 0)
        return 0;
    if (cuda_driver_load(path, why, sizeof(why)) < 0) {
        say_why_not(why);
        return 0;
    }
    r = cuda.DeviceGetCount(&count);
    if (r != CUDA_SUCCESS) {
        say_why_not(cuda_result_name(r));
        return 0;
    }
    return count;
}

/* A machine without a usable GPU is no error. A GPU that the driver cannot describe is left out. */
static int gpu_open_all(const struct backend_config *config, const struct backend_host *host,
                        struct backend_device **ret_devices, unsigned max, unsigned *ret_count, struct error *ignored)
{
    int count = device_count(config);
    bool have_blaslt = count > 0 && blaslt_choose(config->cuda_blaslt, config->cuda_blaslt_late);
    unsigned opened = 0;

    (void)ignored;
    cupti_choose(config->cuda_cupti, config->cuda_driver);
    for (int i = 0; i < count && opened < max; i++) {
        char quoted[300];
        struct error e;
        struct cuda_gpu *gpu = gpu_open(config, host, i, have_blaslt, &e);

        if (gpu)
            ret_devices[opened++] = &gpu->device.base;
        else
            log_warning("cuda_device_skipped", "number=%d reason=%s", i,
                        log_quote(quoted, sizeof(quoted), e.message, strlen(e.message)));
    }
    *ret_count = opened;
    return 0;
}

/* close() of struct backend. It waits for kernels, for ever if one never ends, since the driver cannot stop a kernel.
 * So an executor ends by _exit() instead. */
static void gpu_close(struct backend_device *base)
{
    struct cuda_gpu *gpu = cuda_gpu(base);

    if (cuda_device_is_active(&gpu->device))
        cuda_executor_close(&gpu->executor);
    cuda_kernels_close(&gpu->kernels);
    if (cuda_device_is_active(&gpu->device))
        cuda_device_deactivate(&gpu->device);
    free(gpu);
}

/* ---- the table ---- */

static const char *const *gpu_variants(struct backend_device *base, const struct op *op, enum dtype dtype)
{
    return cuda_variants_find(&cuda_gpu(base)->kernels.variants, op, dtype);
}

static int gpu_stream_new(struct backend_device *base, enum backend_priority priority,
                          struct backend_stream **ret_stream, struct error *e)
{
    struct cuda_executor *x = &cuda_gpu(base)->executor;
    struct cuda_stream *s;

    if (cuda_stream_new(&x->streams, priority, x, &s, e) < 0)
        return -1;
    *ret_stream = (struct backend_stream *)(void *)s;
    return 0;
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
            .spin = true,
            .open = gpu_open_all,
            .close = gpu_close,
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
    .activate = gpu_activate,
    .counters_load = cuda_counters_load,
    .counters_take = cuda_counters_take,
};

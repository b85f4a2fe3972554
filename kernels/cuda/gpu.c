/* Describes the GPUs of the machine, makes them active, and closes them or leaves them behind. */
#include "gpu.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blaslt/blaslt.h"
#include "driver/cupti_library.h"
#include "times/records.h"
#include "util/clock.h"
#include "util/log.h"

/* They stay until the process ends; the list keeps leak checkers quiet. Thread: loop. */

static struct cuda_gpu *gpu_open(const struct backend *backend, const struct backend_config *config,
                                 const struct backend_host *host, int number, bool have_blaslt, struct error *e)
{
    struct cuda_gpu *gpu = calloc(1, sizeof(*gpu));

    if (!gpu) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a device");
        return NULL;
    }
    gpu->device.base.backend = backend;
    gpu->cupti_early = config->cuda_cupti_early;
    if (cuda_device_describe(&gpu->device, number, host, e) < 0) {
        free(gpu);
        return NULL;
    }
    gpu->device.base.counts = true; /* a job hears where they are not to be had */
    gpu->device.base.signals = cuda_flags_are_supported(&gpu->device);
    gpu->device.repack_bytes = gpu->device.has_pools ? config->cuda_repack_bytes : 0;
    cuda_kernels_describe(&gpu->kernels, &gpu->device, have_blaslt, config);
    return gpu;
}

int cuda_gpu_activate(struct backend_device *base, struct error *e)
{
    struct cuda_gpu *gpu = cuda_gpu(base);
    const uint64_t begin_ns = clock_now_ns();
    uint64_t context_ns, kernels_ns;

    if (cuda_device_activate(&gpu->device, e) < 0)
        return -1;
    context_ns = clock_now_ns();
    if (cuda_kernels_load(&gpu->kernels, e) < 0)
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
    cuda_kernels_unload(&gpu->kernels);
deactivate:
    cuda_device_deactivate(&gpu->device);
    return -1;
}

/* That there is no driver is usual on a machine without a GPU. */
static void say_why_not(const char *why)
{
    char quoted[300];

    log_quote(quoted, sizeof(quoted), why, strlen(why));
    if (access("/dev/nvidiactl", F_OK) == 0)
        log_warning("cuda_unavailable", "reason=%s", quoted);
    else
        log_debug("cuda_unavailable", "reason=%s", quoted);
}

/* 0 when there is no driver or no device, which is no error. */
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

int cuda_gpu_open_all(const struct backend *backend, const struct backend_config *config,
                      const struct backend_host *host, struct backend_device **ret_devices, unsigned max,
                      unsigned *ret_count)
{
    int count = device_count(config);
    bool have_blaslt = count > 0 && blaslt_choose(config->cuda_blaslt, config->cuda_blaslt_late);
    unsigned opened = 0;

    cupti_choose(config->cuda_cupti, config->cuda_driver);
    /* A GPU that the driver cannot describe does not take the others away. */
    for (int i = 0; i < count && opened < max; i++) {
        char quoted[300];
        struct error e;
        struct cuda_gpu *gpu = gpu_open(backend, config, host, i, have_blaslt, &e);

        if (gpu)
            ret_devices[opened++] = &gpu->device.base;
        else
            log_warning("cuda_device_skipped", "number=%d reason=%s", i,
                        log_quote(quoted, sizeof(quoted), e.message, strlen(e.message)));
    }
    *ret_count = opened;
    return 0;
}

void cuda_gpu_close(struct backend_device *base)
{
    struct cuda_gpu *gpu = cuda_gpu(base);

    if (cuda_device_is_active(&gpu->device))
        cuda_executor_close(&gpu->executor);
    cuda_kernels_close(&gpu->kernels);
    if (cuda_device_is_active(&gpu->device))
        cuda_device_deactivate(&gpu->device);
    free(gpu);
}

/* The host backend. Its only device, "host", is this machine's processor and memory. */
#include "backend/backend.h"

#include <stdio.h>
#include <stdlib.h>

#include "backend/memory.h"
#include "cpu.h"
#include "device.h"
#include "executor.h"

static struct host_device *to_host(struct backend_device *device)
{
    return (struct host_device *)(void *)device;
}

static void list_variants(struct host_device *d)
{
    unsigned n = 0;

    for (int isa = CPU_ISAS - 1; isa >= CPU_GENERIC; isa--)
        if (kernels_get((enum cpu_isa)isa))
            d->elementwise_variants[n++] = kernels_get((enum cpu_isa)isa)->name;
}

static int host_open(const struct backend_config *config, const struct backend_host *host,
                     struct backend_device **ret_devices, unsigned max, unsigned *ret_count, struct error *e)
{
    const unsigned threads = config && config->host_threads ? config->host_threads : cpu_threads();
    struct host_device *d;

    if (max < 1)
        return error_set(e, ERROR_LIMIT_EXCEEDED, "no room for the host device among %d", BACKEND_MAX_DEVICES);
    d = calloc(1, sizeof(*d));
    if (!d)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the host device");
    d->base.backend = &host_backend;
    cpu_name(d->base.info.name, sizeof(d->base.info.name));
    snprintf(d->base.info.uuid, sizeof(d->base.info.uuid), "host");
    snprintf(d->base.info.arch, sizeof(d->base.info.arch), "%s", cpu_arch());
    d->base.info.memory_bytes = cpu_memory_bytes();
    d->base.info.compute_units = threads;
    if (host)
        d->host = *host;
    d->bypass_bytes = cpu_cache_bytes() / 4;
    blas_init(&d->blas, config ? config->host_blas : NULL);
    onednn_init(&d->onednn, config ? config->host_onednn : NULL);
    gemm_ways_init(d, !(config && config->host_first_variant));
    list_variants(d);
    if (executor_new(d, threads, &d->executor, e) < 0)
        goto free_device;
    ret_devices[0] = &d->base;
    *ret_count = 1;
    return 0;

free_device:
    gemm_ways_deinit(&d->gemm);
    onednn_deinit(&d->onednn);
    blas_deinit(&d->blas);
    free(d);
    return -1;
}

static void host_close(struct backend_device *device)
{
    struct host_device *d = to_host(device);

    executor_free(d->executor);
    gemm_ways_deinit(&d->gemm);
    onednn_deinit(&d->onednn);
    blas_deinit(&d->blas);
    free(d);
}

static const char *const *host_variants(struct backend_device *device, const struct op *op, enum dtype dtype)
{
    return execute_variants(to_host(device), op, dtype);
}

static int host_memory_alloc(struct backend_device *device, uint64_t size, struct backend_memory **ret_memory,
                             int *ret_fd, struct error *e)
{
    (void)device;
    return memfd_new(size, ret_memory, ret_fd, e);
}

static void host_memory_close(struct backend_memory *memory)
{
    memfd_unmap(memory);
}

/* Priorities have no effect, since workers serve streams in turn. */
static int host_stream_new(struct backend_device *device, enum backend_priority priority,
                           struct backend_stream **ret_stream, struct error *e)
{
    (void)priority;
    return executor_stream_new(to_host(device)->executor, ret_stream, e);
}

static int host_memory_free(struct backend_device *device, uint64_t *ret_bytes)
{
    (void)device;
    return cpu_memory_free(ret_bytes);
}

static void host_conditions(struct backend_device *device, struct backend_conditions *ret)
{
    (void)device;
    cpu_conditions("/sys/devices/system/cpu", ret);
}

static unsigned host_poll(struct backend_device *device)
{
    return executor_poll(to_host(device)->executor);
}

/* Workers wake the loop whenever a job ends. */
static void host_arm(struct backend_device *device)
{
    (void)device;
}

const struct backend host_backend = {
    .abi = BACKEND_ABI,
    .name = "host",
    .prepare_process = blas_prepare_process,
    .host_memory = true,
    .times_always = true,
    .open = host_open,
    .close = host_close,
    .variants = host_variants,
    .memory_alloc = host_memory_alloc,
    .memory_close = host_memory_close,
    .stream_new = host_stream_new,
    .stream_free = executor_stream_free,
    .submit = executor_submit,
    .poll = host_poll,
    .arm = host_arm,
    .memory_free = host_memory_free,
    .conditions = host_conditions,
};

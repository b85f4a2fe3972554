#include "driver.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A function pointer through memory: ISO C knows no cast from void *. */
static void take(void *slot, void *address)
{
    memcpy(slot, &address, sizeof(address));
}

static int load_symbols(struct driver *driver, char *why, size_t why_size)
{
    const struct {
        const char *name;
        void *slot;
        bool optional;
    } symbols[] = {
        {"cuInit", &driver->init, false},
        {"cuDeviceGet", &driver->device_get, false},
        {"cuDevicePrimaryCtxRetain", &driver->context_retain, false},
        {"cuCtxSetCurrent", &driver->context_set, false},
        {"cuMemAlloc_v2", &driver->memory_alloc, false},
        {"cuMemFree_v2", &driver->memory_free, false},
        {"cuMemsetD32_v2", &driver->memory_set, false},
        {"cuMemsetD32Async", &driver->memory_set_async, true},
        {"cuModuleLoadData", &driver->module_load, false},
        {"cuModuleGetFunction", &driver->module_function, false},
        {"cuStreamCreate", &driver->stream_create, false},
        {"cuStreamSynchronize", &driver->stream_synchronize, false},
        {"cuStreamBeginCapture_v2", &driver->capture_begin, true},
        {"cuStreamEndCapture", &driver->capture_end, true},
        {"cuGraphInstantiateWithFlags", &driver->graph_instantiate, true},
        {"cuGraphLaunch", &driver->graph_launch, true},
        {"cuEventCreate", &driver->event_create, false},
        {"cuEventRecord", &driver->event_record, false},
        {"cuEventElapsedTime", &driver->event_elapsed, false},
        {"cuLaunchKernel", &driver->launch, false},
        {"cuGetErrorName", &driver->error_name, false},
    };

    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *address = dlsym(driver->library, symbols[i].name);

        if (!address && !symbols[i].optional) {
            snprintf(why, why_size, "the CUDA driver has no %s", symbols[i].name);
            return -1;
        }
        take(symbols[i].slot, address);
    }
    return 0;
}

int driver_load(struct driver *driver, char *why, size_t why_size)
{
    const char *given = getenv("KOPS_CUDA_DRIVER");
    cu_device device;
    cu_context context;

    driver->library = dlopen(given ? given : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver->library) {
        snprintf(why, why_size, "no CUDA driver: %s", dlerror());
        return -1;
    }
    if (load_symbols(driver, why, why_size))
        goto unload;
    if (driver->init(0) || driver->device_get(&device, 0) || driver->context_retain(&context, device) ||
        driver->context_set(context)) {
        snprintf(why, why_size, "the CUDA driver has no usable device");
        goto unload;
    }
    return 0;

unload:
    dlclose(driver->library);
    driver->library = NULL;
    return -1;
}

int driver_check(const struct driver *driver, cu_result result, const char *what)
{
    const char *name = NULL;

    if (!result)
        return 0;
    driver->error_name(result, &name);
    fprintf(stderr, "bench: %s: %s (%d)\n", what, name ? name : "?", result);
    return -1;
}

#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int load_symbols(struct driver *driver, char *why, size_t why_size)
{
    const struct {
        const char *name;
        void *slot;
    } symbols[] = {
        {"cuInit", &driver->init},
        {"cuDeviceGet", &driver->device_get},
        {"cuDevicePrimaryCtxRetain", &driver->context_retain},
        {"cuCtxSetCurrent", &driver->context_set},
        {"cuMemAlloc_v2", &driver->memory_alloc},
        {"cuMemFree_v2", &driver->memory_free},
        {"cuMemsetD32_v2", &driver->memory_set},
        {"cuModuleLoadData", &driver->module_load},
        {"cuModuleGetFunction", &driver->module_function},
        {"cuStreamCreate", &driver->stream_create},
        {"cuStreamSynchronize", &driver->stream_synchronize},
        {"cuEventCreate", &driver->event_create},
        {"cuEventRecord", &driver->event_record},
        {"cuEventElapsedTime", &driver->event_elapsed},
        {"cuLaunchKernel", &driver->launch},
        {"cuGetErrorName", &driver->error_name},
    };

    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *address = dlsym(driver->library, symbols[i].name);

        if (!address) {
            snprintf(why, why_size, "libcuda.so.1 has no %s", symbols[i].name);
            return -1;
        }
        /* A function pointer through memory: ISO C knows no cast from void *. */
        memcpy(symbols[i].slot, &address, sizeof(address));
    }
    return 0;
}

int driver_load(struct driver *driver, char *why, size_t why_size)
{
    cu_device device;
    cu_context context;

    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
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

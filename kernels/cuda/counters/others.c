#include "others.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

enum { NVML_SUCCESS = 0, NVML_INSUFFICIENT_SIZE = 7 };

static struct {
    int (*init)(void);
    int (*by_uuid)(const char *uuid, void **ret_device);
    int (*processes)(void *device, unsigned *count, void *ret_processes);
} nvml;

static bool load(void)
{
    static const struct {
        const char *symbol;
        void *into;
    } wanted[] = {{"nvmlInit_v2", &nvml.init},
                  {"nvmlDeviceGetHandleByUUID", &nvml.by_uuid},
                  {"nvmlDeviceGetComputeRunningProcesses_v3", &nvml.processes}};
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

    for (size_t i = 0; library && i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *symbol = dlsym(library, wanted[i].symbol);

        if (!symbol)
            return false;
        memcpy(wanted[i].into, &symbol, sizeof(symbol));
    }
    return library && nvml.init() == NVML_SUCCESS;
}

bool cuda_others_count(const char *uuid, uint32_t *ret)
{
    static enum { UNKNOWN, LOADED, ABSENT } state;
    unsigned count = 0;
    void *device;
    int r;

    if (state == UNKNOWN)
        state = load() ? LOADED : ABSENT;
    if (state == ABSENT || nvml.by_uuid(uuid, &device) != NVML_SUCCESS)
        return false;
    r = nvml.processes(device, &count, NULL); /* without room for them: their number */
    *ret = count;
    return r == NVML_SUCCESS || r == NVML_INSUFFICIENT_SIZE;
}

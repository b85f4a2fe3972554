#include "backend/conditions.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"

const char *const condition_reason_names[CONDITION_REASON_COUNT] = {
#define X(NAME, word) [CONDITION_##NAME] = (word),
    CONDITION_REASONS(X)
#undef X
};

void conditions_clear(struct backend_conditions *c)
{
    *c = (struct backend_conditions){.clock_mhz = NAN,
                                     .clock_max_mhz = NAN,
                                     .memory_clock_mhz = NAN,
                                     .memory_clock_max_mhz = NAN,
                                     .temperature_c = NAN,
                                     .power_w = NAN,
                                     .power_limit_w = NAN,
                                     .power_slowed_us = NAN,
                                     .thermal_slowed_us = NAN};
}

void conditions_miss(struct backend_conditions *c, const char *why, ...)
{
    va_list arguments;

    conditions_clear(c);
    va_start(arguments, why);
    vsnprintf(c->missing, sizeof(c->missing), why, arguments);
    va_end(arguments);
}

/* ---- NVML ---- */

/* NVML's binary interface, as far as it is used. It is stable: functions that changed got new names. */
enum { NVML_SUCCESS = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2, NVML_TEMPERATURE_GPU = 0 };
enum { NVML_POLICY_POWER = 0, NVML_POLICY_THERMAL = 1 };
enum { NVML_REASONS_KNOWN = CONDITION_OTHER /* bits, each the enum condition_reason of its number */ };
typedef struct nvml_device *nvml_device;
struct nvml_violation {
    unsigned long long reference_us, violated_ns;
};

/* X(result, Name, symbol, parameters): the fields of `nvml`. NULL where the library is too old. */
#define NVML_FUNCTIONS(X)                                                                                              \
    X(int, Init, "nvmlInit_v2", (void))                                                                                \
    X(const char *, ErrorString, "nvmlErrorString", (int result))                                                      \
    X(int, HandleByUUID, "nvmlDeviceGetHandleByUUID", (const char *uuid, nvml_device *ret))                            \
    X(int, ClockInfo, "nvmlDeviceGetClockInfo", (nvml_device device, int clock, unsigned *ret_mhz))                    \
    X(int, MaxClockInfo, "nvmlDeviceGetMaxClockInfo", (nvml_device device, int clock, unsigned *ret_mhz))              \
    X(int, Temperature, "nvmlDeviceGetTemperature", (nvml_device device, int sensor, unsigned *ret_c))                 \
    X(int, PowerUsage, "nvmlDeviceGetPowerUsage", (nvml_device device, unsigned *ret_mw))                              \
    X(int, PowerLimit, "nvmlDeviceGetEnforcedPowerLimit", (nvml_device device, unsigned *ret_mw))                      \
    X(int, EventReasons, "nvmlDeviceGetCurrentClocksEventReasons", (nvml_device device, unsigned long long *ret))      \
    X(int, ThrottleReasons, "nvmlDeviceGetCurrentClocksThrottleReasons", (nvml_device device, unsigned long long *))   \
    X(int, Violation, "nvmlDeviceGetViolationStatus", (nvml_device device, int policy, struct nvml_violation *ret))

static struct {
#define X(result, Name, symbol, parameters) result(*Name) parameters;
    NVML_FUNCTIONS(X)
#undef X
} nvml;

/* A GPU that was asked for. */
struct gpu {
    char uuid[sizeof(((struct backend_device_info *)0)->uuid)];
    nvml_device handle;
    double clock_max_mhz, memory_clock_max_mhz; /* asked for once: each takes the driver 1.4 ms on an H200 */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static char why_not[128]; /* reason why the library cannot be loaded; "": it can, or was not tried */
static bool begun;        /* nvmlInit has succeeded */
static struct gpu gpus[BACKEND_MAX_DEVICES];
static unsigned n_gpus;

/* ---- the library ---- */

static const char name_of_nvml[] = "libnvidia-ml.so.1"; /* the library comes with the driver, and lies beside it */

static int load(void)
{
    void *library = dlopen(name_of_nvml, RTLD_NOW | RTLD_LOCAL), *symbol;

    if (!library) {
        snprintf(why_not, sizeof(why_not), "no %s", name_of_nvml);
        return -1;
    }
#define X(result, Name, name, parameters)                                                                              \
    symbol = dlsym(library, name);                                                                                     \
    memcpy(&nvml.Name, &symbol, sizeof(symbol));
    NVML_FUNCTIONS(X)
#undef X
    if (!nvml.Init || !nvml.ErrorString || !nvml.HandleByUUID) {
        snprintf(why_not, sizeof(why_not), "%s is no NVML, or a very old one", name_of_nvml);
        dlclose(library);
        return -1;
    }
    return 0;
}

/* Begins NVML. A missing library is remembered; a driver that does not begin is tried again by the next question. */
static int begin(struct backend_conditions *ret)
{
    int r;

    if (begun)
        return 0;
    if (*why_not || (!nvml.Init && load() < 0)) {
        conditions_miss(ret, "%s", why_not);
        return -1;
    }
    r = nvml.Init();
    if (r != NVML_SUCCESS) {
        conditions_miss(ret, "NVML: %s", nvml.ErrorString(r));
        return -1;
    }
    begun = true;
    return 0;
}

/* ---- GPUs ---- */

static double max_clock(nvml_device device, int clock)
{
    unsigned mhz;

    return nvml.MaxClockInfo && nvml.MaxClockInfo(device, clock, &mhz) == NVML_SUCCESS ? (double)mhz : (double)NAN;
}

/* Finds a GPU; NULL: *ret says why. CUDA reports the UUID of a MIG instance like a GPU's; NVML has it under another
 * name. */
static const struct gpu *find(const char *uuid, struct backend_conditions *ret)
{
    char instance[sizeof(gpus->uuid) + sizeof("MIG-")];
    struct gpu *gpu = &gpus[n_gpus];
    nvml_device handle;
    int r;

    for (unsigned i = 0; i < n_gpus; i++)
        if (strcmp(gpus[i].uuid, uuid) == 0)
            return &gpus[i];
    r = nvml.HandleByUUID(uuid, &handle);
    if (r != NVML_SUCCESS) {
        snprintf(instance, sizeof(instance), "MIG-%s", strncmp(uuid, "GPU-", 4) == 0 ? uuid + 4 : uuid);
        if (nvml.HandleByUUID(instance, &handle) == NVML_SUCCESS)
            conditions_miss(ret, "NVML tells clocks and temperature of whole GPUs, and not of a MIG instance");
        else
            conditions_miss(ret, "NVML does not know this GPU: %s", nvml.ErrorString(r));
        return NULL;
    }
    if (n_gpus == BACKEND_MAX_DEVICES) {
        conditions_miss(ret, "NVML was asked for too many GPUs");
        return NULL;
    }
    snprintf(gpu->uuid, sizeof(gpu->uuid), "%s", uuid);
    gpu->handle = handle;
    gpu->clock_max_mhz = max_clock(handle, NVML_CLOCK_SM);
    gpu->memory_clock_max_mhz = max_clock(handle, NVML_CLOCK_MEM);
    n_gpus++;
    return gpu;
}

static void read_clocks(nvml_device device, struct backend_conditions *ret)
{
    unsigned mhz;

    if (!nvml.ClockInfo)
        return;
    if (nvml.ClockInfo(device, NVML_CLOCK_SM, &mhz) == NVML_SUCCESS)
        ret->clock_mhz = mhz;
    if (nvml.ClockInfo(device, NVML_CLOCK_MEM, &mhz) == NVML_SUCCESS)
        ret->memory_clock_mhz = mhz;
}

static void read_power(nvml_device device, struct backend_conditions *ret)
{
    unsigned value;

    if (nvml.Temperature && nvml.Temperature(device, NVML_TEMPERATURE_GPU, &value) == NVML_SUCCESS)
        ret->temperature_c = value;
    if (nvml.PowerUsage && nvml.PowerUsage(device, &value) == NVML_SUCCESS)
        ret->power_w = value * 1e-3;
    if (nvml.PowerLimit && nvml.PowerLimit(device, &value) == NVML_SUCCESS)
        ret->power_limit_w = value * 1e-3;
}

static double slowed_us(nvml_device device, int policy)
{
    struct nvml_violation violation;

    if (!nvml.Violation || nvml.Violation(device, policy, &violation) != NVML_SUCCESS)
        return (double)NAN;
    return (double)violation.violated_ns * 1e-3;
}

static void read_reasons(nvml_device device, struct backend_conditions *ret)
{
    unsigned long long bits = 0;

    if (nvml.EventReasons ? nvml.EventReasons(device, &bits) != NVML_SUCCESS
                          : !nvml.ThrottleReasons || nvml.ThrottleReasons(device, &bits) != NVML_SUCCESS)
        return;
    ret->reasons = (uint32_t)(bits & ((1U << NVML_REASONS_KNOWN) - 1));
    if (bits >> NVML_REASONS_KNOWN)
        ret->reasons |= 1U << CONDITION_OTHER;
}

void nvml_conditions(struct backend_device *device, struct backend_conditions *ret)
{
    const struct gpu *gpu;

    conditions_clear(ret);
    pthread_mutex_lock(&lock);
    if (begin(ret) == 0 && (gpu = find(device->info.uuid, ret)) != NULL) {
        read_clocks(gpu->handle, ret);
        ret->clock_max_mhz = gpu->clock_max_mhz;
        ret->memory_clock_max_mhz = gpu->memory_clock_max_mhz;
        read_power(gpu->handle, ret);
        ret->power_slowed_us = slowed_us(gpu->handle, NVML_POLICY_POWER);
        ret->thermal_slowed_us = slowed_us(gpu->handle, NVML_POLICY_THERMAL);
        read_reasons(gpu->handle, ret);
        if (isnan(ret->clock_mhz) && isnan(ret->temperature_c) && isnan(ret->power_w))
            conditions_miss(ret, "NVML tells nothing of this GPU");
    }
    pthread_mutex_unlock(&lock);
}

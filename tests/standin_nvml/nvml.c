/* NVML without a GPU: the functions that the daemon uses. The file that KOPS_STANDIN_NVML names has the answers, a key
 * and a value a line; each call reads it, so a test changes an answer by writing the file anew. An absent key is the
 * answer "Not Supported"; without a file every GPU is known. A confined process can read no such file: the number of a
 * GPU's processes is in KOPS_STANDIN_PROCESSES. Each reading adds a line to the file's neighbour `….readings`.
 *
 * - gpu, instance: the UUID of a GPU, and of an instance of a divided one; others are "Not Found"
 * - clock, memory_clock, clock_max, memory_clock_max: MHz
 * - temperature: degrees Celsius; power_mw, power_limit_mw: mW
 * - reasons: the bits of the clocks' event reasons
 * - power_slowed_ns, thermal_slowed_ns: what nvmlDeviceGetViolationStatus says, in ns
 * - init: what nvmlInit_v2 returns
 * - block: while it is there, readings of the clock do not return */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

/* The header of these is NVIDIA's, which the build does without. */
EXPORT int nvmlInit_v2(void);
EXPORT const char *nvmlErrorString(int result);
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret);
EXPORT int nvmlDeviceGetClockInfo(const void *device, int clock, unsigned *ret_mhz);
EXPORT int nvmlDeviceGetMaxClockInfo(const void *device, int clock, unsigned *ret_mhz);
EXPORT int nvmlDeviceGetTemperature(const void *device, int sensor, unsigned *ret_c);
EXPORT int nvmlDeviceGetPowerUsage(const void *device, unsigned *ret_mw);
EXPORT int nvmlDeviceGetEnforcedPowerLimit(const void *device, unsigned *ret_mw);
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(const void *device, unsigned long long *ret_bits);
EXPORT int nvmlDeviceGetViolationStatus(const void *device, int policy, unsigned long long *ret_times);
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(const void *device, unsigned *count, void *ret_processes);

enum { SUCCESS = 0, UNINITIALIZED = 1, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { CLOCK_SM = 1, POLICY_POWER = 0 };

static int gpu_object, instance_object; /* handles are the addresses */
static bool initialised;

/* Whether the file has a line of that key; its value then. */
static bool find(const char *key, char *ret, size_t size)
{
    const char *path = getenv("KOPS_STANDIN_NVML");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[256];
    bool found = false;

    while (file && !found && fgets(line, sizeof(line), file)) {
        const size_t n = strlen(key);

        found = strncmp(line, key, n) == 0 && line[n] == ' ';
        if (found)
            snprintf(ret, size, "%.*s", (int)strcspn(line + n + 1, "\n"), line + n + 1);
    }
    if (file)
        fclose(file);
    return found;
}

static bool has_value(const char *key, const char *value)
{
    char text[128];

    return find(key, text, sizeof(text)) && strcmp(text, value) == 0;
}

static int number(const char *key, unsigned long long *ret)
{
    char text[64];

    if (!find(key, text, sizeof(text)))
        return NOT_SUPPORTED;
    *ret = strtoull(text, NULL, 0);
    return SUCCESS;
}

static int small_number(const char *key, unsigned *ret)
{
    unsigned long long value;
    int r = number(key, &value);

    if (r == SUCCESS)
        *ret = (unsigned)value;
    return r;
}

/* A line more in the file beside: tests count readings. */
static void note_reading(void)
{
    const char *path = getenv("KOPS_STANDIN_NVML");
    char beside[512];
    FILE *file;

    snprintf(beside, sizeof(beside), "%s.readings", path ? path : "");
    file = path ? fopen(beside, "ae") : NULL;
    if (!file)
        return;
    fputs("reading\n", file);
    fclose(file);
}

int nvmlInit_v2(void)
{
    unsigned long long code;
    const int r = number("init", &code) == SUCCESS ? (int)code : SUCCESS;

    initialised = r == SUCCESS;
    return r;
}

const char *nvmlErrorString(int result)
{
    return result == NOT_FOUND ? "Not Found" : result == NOT_SUPPORTED ? "Not Supported" : "Stand-in Error";
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret)
{
    if (!initialised)
        return UNINITIALIZED;
    if (has_value("gpu", uuid) || !getenv("KOPS_STANDIN_NVML"))
        *ret = &gpu_object;
    else if (has_value("instance", uuid))
        *ret = &instance_object;
    else
        return NOT_FOUND;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(const void *device, int clock, unsigned *ret_mhz)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    char text[8];

    (void)device;
    if (clock == CLOCK_SM) {
        note_reading();
        while (find("block", text, sizeof(text)))
            nanosleep(&pause, NULL);
    }
    return small_number(clock == CLOCK_SM ? "clock" : "memory_clock", ret_mhz);
}

int nvmlDeviceGetMaxClockInfo(const void *device, int clock, unsigned *ret_mhz)
{
    (void)device;
    return small_number(clock == CLOCK_SM ? "clock_max" : "memory_clock_max", ret_mhz);
}

int nvmlDeviceGetTemperature(const void *device, int sensor, unsigned *ret_c)
{
    (void)device;
    (void)sensor;
    return small_number("temperature", ret_c);
}

int nvmlDeviceGetPowerUsage(const void *device, unsigned *ret_mw)
{
    (void)device;
    return small_number("power_mw", ret_mw);
}

int nvmlDeviceGetEnforcedPowerLimit(const void *device, unsigned *ret_mw)
{
    (void)device;
    return small_number("power_limit_mw", ret_mw);
}

int nvmlDeviceGetCurrentClocksEventReasons(const void *device, unsigned long long *ret_bits)
{
    (void)device;
    return number("reasons", ret_bits);
}

int nvmlDeviceGetViolationStatus(const void *device, int policy, unsigned long long *ret_times)
{
    (void)device;
    ret_times[0] = 1;
    return number(policy == POLICY_POWER ? "power_slowed_ns" : "thermal_slowed_ns", &ret_times[1]);
}

int nvmlDeviceGetComputeRunningProcesses_v3(const void *device, unsigned *count, void *ret_processes)
{
    const char *text = getenv("KOPS_STANDIN_PROCESSES");

    (void)device;
    (void)ret_processes;
    *count = text ? (unsigned)strtoul(text, NULL, 10) : 0;
    return *count ? INSUFFICIENT_SIZE : SUCCESS;
}

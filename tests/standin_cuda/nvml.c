/* A stand-in for the driver's management library: as many processes have each device as KOPS_STANDIN_PROCESSES says. */
#include <stdlib.h>

#define API __attribute__((visibility("default"))) int

int nvmlInit_v2(void);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret_device);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *ret_processes);

enum { UNINITIALIZED = 1, INSUFFICIENT_SIZE = 7 };

static int initialised;

API nvmlInit_v2(void)
{
    initialised = 1;
    return 0;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, void **ret_device)
{
    *ret_device = &initialised;
    return initialised && uuid[0] == 'G' ? 0 : UNINITIALIZED;
}

API nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *ret_processes)
{
    const char *text = getenv("KOPS_STANDIN_PROCESSES");

    (void)ret_processes;
    *count = text ? (unsigned)strtoul(text, NULL, 10) : 0;
    return device == &initialised ? *count ? INSUFFICIENT_SIZE : 0 : UNINITIALIZED;
}

/* cuInit, the devices, and their contexts: each thread's stack of current ones, the primary ones, and what a sticky
 * fault does to them. KOPS_STANDIN_DEVICES: how many devices there are (1), of which CUDA_VISIBLE_DEVICES chooses and
 * orders some. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

struct device standin_devices[MAX_DEVICES];
int standin_device_count;

static void device_add(unsigned physical)
{
    static const unsigned char base[16] = {0x57, 0xa1, 0xd1, 0x40, 0xc0, 0xda, 0x4b, 0x0b,
                                           0x80, 0x5d, 0x00, 0x0d, 0xe5, 0x1c, 0xe0, 0x00};
    struct device *device;

    if (standin_device_count == MAX_DEVICES)
        return;
    device = &standin_devices[standin_device_count++];
    memcpy(device->uuid.bytes, base, sizeof(base));
    device->uuid.bytes[15] = (char)(physical + 1);
}

static CUresult devices_find_all(void)
{
    const char *text = getenv("KOPS_STANDIN_DEVICES"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    unsigned n = text ? (unsigned)strtoul(text, NULL, 10) : 1;

    standin_device_count = 0;
    if (!visible) {
        for (unsigned i = 0; i < n; i++)
            device_add(i);
    } else {
        for (const char *c = visible; *c;) {
            char *end;
            unsigned long i = strtoul(c, &end, 10);

            if (end == c || i >= n)
                break; /* as a real driver: the rest is invisible */
            device_add((unsigned)i);
            c = *end == ',' ? end + 1 : end;
        }
    }
    return standin_device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

bool device_is_valid(CUdevice device)
{
    return device >= 0 && device < standin_device_count;
}

int device_by_uuid(const CUuuid *uuid)
{
    for (int i = 0; i < standin_device_count; i++)
        if (memcmp(&standin_devices[i].uuid, uuid, sizeof(*uuid)) == 0)
            return i;
    return -1;
}

CUresult enter_device(const char *name, CUdevice device)
{
    CUresult r = enter(name);

    if (r != CUDA_SUCCESS)
        return r;
    return device_is_valid(device) ? r : leave(CUDA_ERROR_INVALID_DEVICE);
}

CUresult device_charge(int device, uint64_t bytes)
{
    uint64_t limit = control_memory_limit(), used = standin_devices[device].used;

    if (bytes > limit || used > limit - bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    standin_devices[device].used += bytes;
    return CUDA_SUCCESS;
}

void device_refund(int device, uint64_t bytes)
{
    standin_devices[device].used -= bytes;
}

/* A tool, which the environment names. One that cannot be loaded is left out, as the driver does. */
static void load_tool(void)
{
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library = path && *path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    void *symbol = library ? dlsym(library, "InitializeInjection") : NULL;
    int (*initialize)(void);

    if (!symbol)
        return;
    memcpy(&initialize, &symbol, sizeof(symbol));
    initialize();
}

API cuInit(unsigned flags)
{
    CUresult r;

    ENTER(enter_uninitialised("cuInit"));
    if (flags)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (state_is_initialised())
        return leave(CUDA_SUCCESS);
    r = devices_find_all();
    if (r != CUDA_SUCCESS)
        return leave(r);
    control_attach();
    state_initialised();
    count_call("cuInit");
    gate_pass_call(STANDIN_GATE_init);
    leave(CUDA_SUCCESS);
    load_tool();
    return CUDA_SUCCESS;
}

API cuDriverGetVersion(int *ret_version)
{
    if (!ret_version)
        return CUDA_ERROR_INVALID_VALUE;
    *ret_version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

API cuDeviceGetCount(int *ret_count)
{
    ENTER(enter("cuDeviceGetCount"));
    *ret_count = standin_device_count;
    return leave(CUDA_SUCCESS);
}

API cuDeviceGet(CUdevice *ret_device, int ordinal)
{
    ENTER(enter_device("cuDeviceGet", ordinal));
    *ret_device = ordinal;
    return leave(CUDA_SUCCESS);
}

API cuDeviceGetName(char *name, int size, CUdevice device)
{
    ENTER(enter_device("cuDeviceGetName", device));
    snprintf(name, (size_t)size, "Stand-in CUDA device");
    return leave(CUDA_SUCCESS);
}

API cuDeviceGetUuid_v2(CUuuid *ret_uuid, CUdevice device)
{
    ENTER(enter_device("cuDeviceGetUuid", device));
    *ret_uuid = standin_devices[device].uuid;
    return leave(CUDA_SUCCESS);
}

API cuDeviceTotalMem_v2(size_t *ret_bytes, CUdevice device)
{
    ENTER(enter_device("cuDeviceTotalMem", device));
    *ret_bytes = control_memory_limit();
    return leave(CUDA_SUCCESS);
}

static const struct {
    CUdevice_attribute attribute;
    int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 4 << 20},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
};

/* KOPS_STANDIN_ATTRIBUTES="122=0,78=0": a device that can less, or more, than this one. */
static bool attribute_from_environment(CUdevice_attribute attribute, int *ret_value)
{
    const char *at = getenv("KOPS_STANDIN_ATTRIBUTES");

    while (at && *at) {
        char *end;
        long number = strtol(at, &end, 10);

        if (*end != '=')
            return false;
        if (number == (long)attribute) {
            *ret_value = (int)strtol(end + 1, NULL, 10);
            return true;
        }
        at = strchr(end, ',');
        at = at ? at + 1 : NULL;
    }
    return false;
}

int device_attribute(CUdevice device, CUdevice_attribute attribute)
{
    int value = 0;

    if (attribute_from_environment(attribute, &value))
        return value;
    for (size_t i = 0; i < sizeof(attributes) / sizeof(*attributes); i++)
        if (attributes[i].attribute == attribute)
            return attributes[i].value;
    return 0;
}

API cuDeviceGetAttribute(int *ret_value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER(enter_device("cuDeviceGetAttribute", device));
    if (!ret_value || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_value = device_attribute(device, attribute);
    return leave(CUDA_SUCCESS);
}

/* ---- contexts ---- */

enum { STACK_MAX = 32 };

static _Thread_local CUcontext stack[STACK_MAX];
static _Thread_local unsigned depth;

CUresult context_current(struct context **ret_context)
{
    struct context *context;

    if (!depth || !stack[depth - 1])
        return CUDA_ERROR_INVALID_CONTEXT;
    context = handle_get(HANDLE_CONTEXT, stack[depth - 1]);
    if (!context)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *ret_context = context;
    return CUDA_SUCCESS;
}

struct context *context_any(int device)
{
    return standin_devices[device].primary;
}

void context_break(struct context *context, CUresult error)
{
    if (context->broken)
        return;
    context->error = error;
    context->broken = true;
    count(STANDIN_COUNTER_sticky, 1);
    fprintf(stderr, "cuda_standin: the context of device %d is broken (error %d)\n", context->device, (int)error);
    pthread_cond_broadcast(&standin_progress);
}

static CUresult context_new(int device, struct context **ret_context)
{
    struct context *context;

    context = calloc(1, sizeof(*context));
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->device = device;
    context->handle = handle_new(HANDLE_CONTEXT, context);
    count(STANDIN_COUNTER_live_contexts, 1);
    count(STANDIN_COUNTER_contexts, 1);
    *ret_context = context;
    return CUDA_SUCCESS;
}

/* The handle dies; the struct stays, since streams and regions of a careless program still point at it. */
static void context_end(struct context *context)
{
    streams_wait_context(context);
    if (context->default_stream)
        stream_end(context->default_stream);
    context->default_stream = NULL;
    handle_free(context->handle);
    count(STANDIN_COUNTER_live_contexts, -1);
}

API cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device)
{
    CUresult r = CUDA_SUCCESS;
    struct device *d;

    ENTER(enter_device("cuDevicePrimaryCtxRetain", device));
    gate_pass_call(STANDIN_GATE_context);
    d = &standin_devices[device];
    if (!d->primary)
        r = context_new(device, &d->primary);
    if (r != CUDA_SUCCESS)
        return leave(r);
    d->retained++;
    *ret_context = d->primary->handle;
    return leave(CUDA_SUCCESS);
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    struct device *d;

    ENTER(enter_device("cuDevicePrimaryCtxRelease", device));
    d = &standin_devices[device];
    if (!d->retained)
        return leave(misuse(CUDA_ERROR_INVALID_CONTEXT, "the primary context of device %d is not retained", device));
    d->retained--;
    /* A broken one cannot be replaced in this process. */
    if (!d->retained && !d->primary->broken) {
        context_end(d->primary);
        d->primary = NULL;
    }
    return leave(CUDA_SUCCESS);
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *ret_flags, int *ret_active)
{
    ENTER(enter_device("cuDevicePrimaryCtxGetState", device));
    *ret_flags = 0;
    *ret_active = standin_devices[device].primary != NULL;
    return leave(CUDA_SUCCESS);
}

API cuCtxSetCurrent(CUcontext handle)
{
    ENTER(enter("cuCtxSetCurrent"));
    if (handle && !handle_get(HANDLE_CONTEXT, handle))
        return leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!depth)
        depth = 1;
    stack[depth - 1] = handle;
    return leave(CUDA_SUCCESS);
}

API cuCtxPushCurrent_v2(CUcontext handle)
{
    ENTER(enter("cuCtxPushCurrent"));
    if (!handle_get(HANDLE_CONTEXT, handle))
        return leave(CUDA_ERROR_INVALID_CONTEXT);
    if (depth == STACK_MAX)
        return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%u contexts were pushed and not popped", depth));
    stack[depth++] = handle;
    return leave(CUDA_SUCCESS);
}

API cuCtxPopCurrent_v2(CUcontext *ret_handle)
{
    ENTER(enter("cuCtxPopCurrent"));
    if (!depth)
        return leave(misuse(CUDA_ERROR_INVALID_CONTEXT, "no context is current"));
    depth--;
    if (ret_handle)
        *ret_handle = stack[depth];
    return leave(CUDA_SUCCESS);
}

API cuCtxGetCurrent(CUcontext *ret_handle)
{
    ENTER(enter("cuCtxGetCurrent"));
    *ret_handle = depth ? stack[depth - 1] : NULL;
    return leave(CUDA_SUCCESS);
}

API cuCtxGetDevice(CUdevice *ret_device)
{
    CUresult r;
    struct context *context;

    ENTER(enter("cuCtxGetDevice"));
    r = context_current(&context);
    if (r == CUDA_SUCCESS)
        *ret_device = context->device;
    return leave(r);
}

API cuCtxSynchronize(void)
{
    struct context *context;

    ENTER(enter_context("cuCtxSynchronize", &context));
    return leave(streams_wait_context(context));
}

API cuCtxGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
    ENTER(enter_context("cuCtxGetStreamPriorityRange", NULL));
    if (ret_least)
        *ret_least = PRIORITY_LEAST;
    if (ret_greatest)
        *ret_greatest = PRIORITY_GREATEST;
    return leave(CUDA_SUCCESS);
}

/* ---- names of results ---- */

#define NAMED(result)                                                                                                  \
    {                                                                                                                  \
        result, #result                                                                                                \
    }

static const struct {
    CUresult result;
    const char *name;
} names[] = {NAMED(CUDA_SUCCESS),
             NAMED(CUDA_ERROR_INVALID_VALUE),
             NAMED(CUDA_ERROR_OUT_OF_MEMORY),
             NAMED(CUDA_ERROR_NOT_INITIALIZED),
             NAMED(CUDA_ERROR_DEVICE_UNAVAILABLE),
             NAMED(CUDA_ERROR_NO_DEVICE),
             NAMED(CUDA_ERROR_INVALID_DEVICE),
             NAMED(CUDA_ERROR_INVALID_IMAGE),
             NAMED(CUDA_ERROR_INVALID_CONTEXT),
             NAMED(CUDA_ERROR_MAP_FAILED),
             NAMED(CUDA_ERROR_NO_BINARY_FOR_GPU),
             NAMED(CUDA_ERROR_ECC_UNCORRECTABLE),
             NAMED(CUDA_ERROR_OPERATING_SYSTEM),
             NAMED(CUDA_ERROR_INVALID_HANDLE),
             NAMED(CUDA_ERROR_NOT_FOUND),
             NAMED(CUDA_ERROR_NOT_READY),
             NAMED(CUDA_ERROR_ILLEGAL_ADDRESS),
             NAMED(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
             NAMED(CUDA_ERROR_LAUNCH_TIMEOUT),
             NAMED(CUDA_ERROR_CONTEXT_IS_DESTROYED),
             NAMED(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
             NAMED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
             NAMED(CUDA_ERROR_HARDWARE_STACK_ERROR),
             NAMED(CUDA_ERROR_ILLEGAL_INSTRUCTION),
             NAMED(CUDA_ERROR_MISALIGNED_ADDRESS),
             NAMED(CUDA_ERROR_LAUNCH_FAILED),
             NAMED(CUDA_ERROR_INVALID_CLUSTER_SIZE),
             NAMED(CUDA_ERROR_NOT_PERMITTED),
             NAMED(CUDA_ERROR_NOT_SUPPORTED),
             NAMED(CUDA_ERROR_MPS_CONNECTION_FAILED),
             NAMED(CUDA_ERROR_ILLEGAL_STATE),
             NAMED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
             NAMED(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
             NAMED(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
             NAMED(CUDA_ERROR_CAPTURED_EVENT),
             NAMED(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
             NAMED(CUDA_ERROR_UNKNOWN)};

API cuGetErrorName(CUresult result, const char **ret_name)
{
    *ret_name = NULL;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (names[i].result == result)
            *ret_name = names[i].name;
    return *ret_name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

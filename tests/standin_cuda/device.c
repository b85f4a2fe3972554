/* cuInit, and the devices: KOPS_STANDIN_DEVICES of them (1), of which CUDA_VISIBLE_DEVICES chooses and orders some. */
#include <dlfcn.h>
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
    device->physical = physical;
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
#undef cuDeviceGetUuid
API_ALIAS(cuDeviceGetUuid_v2) CUresult CUDAAPI cuDeviceGetUuid(CUuuid *ret_uuid, CUdevice device);

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
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1500000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2600000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 4096},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 4 << 20},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1},
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
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)
        return (int)standin_devices[device].physical;
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

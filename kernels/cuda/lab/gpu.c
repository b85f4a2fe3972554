/* The lab's driver calls. */
#include "gpu.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* X(Name, suffix): the symbol is "cu<Name><suffix>", its type cuda.h's. */
#define FUNCTIONS(X)                                                                                                   \
    X(Init, "")                                                                                                        \
    X(GetErrorString, "")                                                                                              \
    X(DeviceGet, "")                                                                                                   \
    X(DeviceGetName, "")                                                                                               \
    X(DeviceGetAttribute, "")                                                                                          \
    X(DevicePrimaryCtxRetain, "")                                                                                      \
    X(DevicePrimaryCtxRelease, "_v2")                                                                                  \
    X(CtxSetCurrent, "")                                                                                               \
    X(CtxSynchronize, "")                                                                                              \
    X(ModuleLoadData, "")                                                                                              \
    X(ModuleGetFunction, "")                                                                                           \
    X(OccupancyMaxActiveBlocksPerMultiprocessor, "")                                                                   \
    X(MemAlloc, "_v2")                                                                                                 \
    X(MemFree, "_v2")                                                                                                  \
    X(MemcpyHtoD, "_v2")                                                                                               \
    X(MemcpyDtoH, "_v2")                                                                                               \
    X(MemcpyDtoDAsync, "_v2")                                                                                          \
    X(FuncSetAttribute, "")                                                                                            \
    X(TensorMapEncodeTiled, "")                                                                                        \
    X(MemsetD16, "_v2")                                                                                                \
    X(LaunchKernel, "")                                                                                                \
    X(EventCreate, "")                                                                                                 \
    X(EventRecord, "")                                                                                                 \
    X(EventSynchronize, "")                                                                                            \
    X(EventElapsedTime, "")

enum { MAX_MODULES = 32, MAX_REPEAT = 64 };

struct lab_gpu {
    void *library;
#define X(Name, suffix) __typeof__(cu##Name) *Name;
    FUNCTIONS(X)
#undef X
    CUdevice device;
    CUcontext context;
    CUmodule modules[MAX_MODULES];
    unsigned n_modules;
    CUevent start, stop;
    char name[128];
    struct lab_machine machine;
};

/* 0, or -1 after a line on stderr. */
static int check(struct lab_gpu *gpu, CUresult result, const char *what)
{
    const char *text = NULL;

    if (result == CUDA_SUCCESS)
        return 0;
    gpu->GetErrorString(result, &text);
    fprintf(stderr, "%s: %s (%d)\n", what, text ? text : "unknown error", (int)result);
    return -1;
}

static CUfunction find(struct lab_gpu *gpu, const char *kernel)
{
    CUfunction function;

    for (unsigned i = 0; i < gpu->n_modules; i++) {
        if (gpu->ModuleGetFunction(&function, gpu->modules[i], kernel) == CUDA_SUCCESS)
            return function;
    }
    fprintf(stderr, "%s: no binary has this kernel\n", kernel);
    return NULL;
}

static uint64_t machine_alloc(void *context, size_t size)
{
    struct lab_gpu *gpu = context;
    CUdeviceptr address;

    return check(gpu, gpu->MemAlloc(&address, size ? size : 1), "allocating") < 0 ? 0 : address;
}

static void machine_free(void *context, uint64_t address, size_t size)
{
    struct lab_gpu *gpu = context;

    (void)size;
    gpu->MemFree(address);
}

static int machine_write(void *context, uint64_t to, const void *from, size_t size)
{
    struct lab_gpu *gpu = context;

    return size ? check(gpu, gpu->MemcpyHtoD(to, from, size), "copying to the device") : 0;
}

static int machine_read(void *context, void *to, uint64_t from, size_t size)
{
    struct lab_gpu *gpu = context;

    return size ? check(gpu, gpu->MemcpyDtoH(to, from, size), "copying from the device") : 0;
}

/* cuda_ops_encode() has no place for the lab's driver; the lab has one GPU. */
static __typeof__(cuTensorMapEncodeTiled) *encoder;

static int encode(void *map, int type, unsigned rank, void *address, const uint64_t *extents, const uint64_t *strides,
                  const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill)
{
    return (int)encoder(map, (CUtensorMapDataType)type, rank, address, extents, strides, box, steps,
                        (CUtensorMapInterleave)interleave, (CUtensorMapSwizzle)swizzle,
                        (CUtensorMapL2promotion)promotion, (CUtensorMapFloatOOBfill)fill);
}

static int start_launch(struct lab_gpu *gpu, CUfunction function, const struct cuda_launch *launch)
{
    struct cuda_launch encoded = *launch;
    void *all[] = {encoded.params};

    encoder = gpu->TensorMapEncodeTiled;
    if (check(gpu, (CUresult)cuda_ops_encode(&encoded, encode), "encoding a tensor map") < 0 ||
        (launch->shared_bytes > 48 << 10 &&
         check(gpu,
               gpu->FuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                     (int)launch->shared_bytes),
               launch->kernel) < 0))
        return -1;
    return check(gpu,
                 gpu->LaunchKernel(function, launch->grid[0], launch->grid[1], launch->grid[2], launch->block[0],
                                   launch->block[1], launch->block[2], launch->shared_bytes, NULL, all, NULL),
                 launch->kernel);
}

static int machine_launch(void *context, const struct cuda_launch *launch)
{
    struct lab_gpu *gpu = context;
    const CUfunction function = find(gpu, launch->kernel);

    if (!function || start_launch(gpu, function, launch) < 0)
        return -1;
    return check(gpu, gpu->CtxSynchronize(), launch->kernel);
}

static int load_library(struct lab_gpu *gpu)
{
    gpu->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!gpu->library) {
        fprintf(stderr, "%s\n", dlerror());
        return -1;
    }
#define X(Name, suffix)                                                                                                \
    gpu->Name = (__typeof__(gpu->Name))(uintptr_t)dlsym(gpu->library, "cu" #Name suffix);                              \
    if (!gpu->Name) {                                                                                                  \
        fprintf(stderr, "the driver has no cu" #Name suffix "\n");                                                     \
        return -1;                                                                                                     \
    }
    FUNCTIONS(X)
#undef X
    return 0;
}

static int open_device(struct lab_gpu *gpu)
{
    int multiprocessors = 0, major = 0, minor = 0;

    if (check(gpu, gpu->Init(0), "cuInit") < 0 || check(gpu, gpu->DeviceGet(&gpu->device, 0), "cuDeviceGet") < 0 ||
        check(gpu, gpu->DevicePrimaryCtxRetain(&gpu->context, gpu->device), "opening the device") < 0 ||
        check(gpu, gpu->CtxSetCurrent(gpu->context), "cuCtxSetCurrent") < 0 ||
        check(gpu, gpu->EventCreate(&gpu->start, CU_EVENT_DEFAULT), "cuEventCreate") < 0 ||
        check(gpu, gpu->EventCreate(&gpu->stop, CU_EVENT_DEFAULT), "cuEventCreate") < 0)
        return -1;
    gpu->DeviceGetName(gpu->name, sizeof(gpu->name), gpu->device);
    gpu->DeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu->device);
    gpu->DeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu->device);
    gpu->DeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, gpu->device);
    gpu->machine = (struct lab_machine){
        .device = {.multiprocessors = (unsigned)multiprocessors,
                   .level = cuda_ops_level_of(cuda_ops_architectures, (unsigned)(10 * major + minor))},
        .context = gpu,
        .alloc = machine_alloc,
        .free = machine_free,
        .write = machine_write,
        .read = machine_read,
        .launch = machine_launch,
    };
    return 0;
}

static int load_binaries(struct lab_gpu *gpu, const struct cuda_ops_binary *binaries, unsigned n)
{
    for (unsigned i = 0; i < n && gpu->n_modules < MAX_MODULES; i++) {
        if (check(gpu, gpu->ModuleLoadData(&gpu->modules[gpu->n_modules], binaries[i].data), binaries[i].name) < 0)
            return -1;
        gpu->n_modules++;
    }
    return 0;
}

struct lab_gpu *lab_gpu_open(void)
{
    struct lab_gpu *gpu = calloc(1, sizeof(*gpu));

    if (!gpu)
        return NULL;
    if (load_library(gpu) < 0 || open_device(gpu) < 0 ||
        load_binaries(gpu, cuda_ops_binaries, cuda_ops_binary_count) < 0 ||
        load_binaries(gpu, lab_binaries, lab_binary_count) < 0) {
        lab_gpu_close(gpu);
        return NULL;
    }
    return gpu;
}

void lab_gpu_close(struct lab_gpu *gpu)
{
    if (gpu->context)
        gpu->DevicePrimaryCtxRelease(gpu->device);
    if (gpu->library)
        dlclose(gpu->library);
    free(gpu);
}

const char *lab_gpu_name(const struct lab_gpu *gpu)
{
    return gpu->name;
}

const struct lab_machine *lab_gpu_machine(const struct lab_gpu *gpu)
{
    return &gpu->machine;
}

unsigned lab_gpu_occupancy(struct lab_gpu *gpu, const char *kernel, unsigned block)
{
    const CUfunction function = find(gpu, kernel);
    int blocks = 0;

    if (function)
        gpu->OccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, (int)block, 0);
    return blocks > 0 ? (unsigned)blocks : 1;
}

int lab_gpu_fill(struct lab_gpu *gpu, uint64_t address, uint16_t pattern, size_t count)
{
    return check(gpu, gpu->MemsetD16(address, pattern, count), "filling memory");
}

static int compare_times(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Times the work that run(context) enqueues. */
static double time_of(struct lab_gpu *gpu, int (*run)(struct lab_gpu *, const void *), const void *context,
                      unsigned repeat)
{
    float ms[MAX_REPEAT];

    if (repeat > MAX_REPEAT)
        repeat = MAX_REPEAT;
    if (run(gpu, context) < 0)
        return -1;
    for (unsigned i = 0; i < repeat; i++) {
        if (gpu->EventRecord(gpu->start, NULL) != CUDA_SUCCESS || run(gpu, context) < 0 ||
            gpu->EventRecord(gpu->stop, NULL) != CUDA_SUCCESS ||
            check(gpu, gpu->EventSynchronize(gpu->stop), "waiting for the device") < 0 ||
            gpu->EventElapsedTime(&ms[i], gpu->start, gpu->stop) != CUDA_SUCCESS)
            return -1;
    }
    qsort(ms, repeat, sizeof(ms[0]), compare_times);
    return (double)ms[repeat / 2] * 1e3;
}

struct timed_launch {
    CUfunction function;
    const struct cuda_launch *launch;
};

static int run_launch(struct lab_gpu *gpu, const void *context)
{
    const struct timed_launch *t = context;

    return start_launch(gpu, t->function, t->launch);
}

double lab_gpu_time(struct lab_gpu *gpu, const struct cuda_launch *launch, unsigned repeat)
{
    const struct timed_launch t = {find(gpu, launch->kernel), launch};

    return t.function ? time_of(gpu, run_launch, &t, repeat) : -1;
}

struct timed_copy {
    uint64_t to, from;
    size_t size;
};

static int run_copy(struct lab_gpu *gpu, const void *context)
{
    const struct timed_copy *t = context;

    return check(gpu, gpu->MemcpyDtoDAsync(t->to, t->from, t->size, NULL), "copying on the device");
}

double lab_gpu_time_copy(struct lab_gpu *gpu, uint64_t to, uint64_t from, size_t size, unsigned repeat)
{
    const struct timed_copy t = {to, from, size};

    return time_of(gpu, run_copy, &t, repeat);
}

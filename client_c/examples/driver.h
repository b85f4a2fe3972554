/* CUDA driver functions for the examples, loaded at run time, so that they build without a CUDA toolkit. A program that
 * uses the toolkit includes cuda.h or cuda_runtime.h instead. */
#ifndef EXAMPLE_DRIVER_H
#define EXAMPLE_DRIVER_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kops/kops.h>

/* The driver's interface, as cuda.h has it. */
static struct {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*context_retain)(void **context, int device);
    int (*context_set)(void *context);
    int (*context_synchronize)(void);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_synchronize)(void *stream);
    int (*mem_alloc)(uint64_t *pointer, size_t size);
    int (*mem_free)(uint64_t pointer);
    int (*set_async)(uint64_t to, unsigned value, size_t n, void *stream);
    int (*copy_async)(uint64_t to, uint64_t from, size_t size, void *stream);
    int (*copy_to_device)(uint64_t to, const void *from, size_t size);
    int (*copy_to_host)(void *to, uint64_t from, size_t size);
} cu;

static void check(int status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: CUDA error %d\n", what, status);
        exit(EXIT_FAILURE);
    }
}

static void check_kops(enum kops_code code, const char *what, const struct kops_error *error)
{
    if (code) {
        fprintf(stderr, "%s: %s (%s)\n", what, error->message, kops_code_name(code));
        exit(EXIT_FAILURE);
    }
}

/* Loads the driver, and makes the first device's context this thread's. */
static void start_cuda(void)
{
    static const struct {
        const char *name;
        void *into;
    } functions[] = {{"cuInit", &cu.init},
                     {"cuDeviceGet", &cu.device_get},
                     {"cuDevicePrimaryCtxRetain", &cu.context_retain},
                     {"cuCtxSetCurrent", &cu.context_set},
                     {"cuCtxSynchronize", &cu.context_synchronize},
                     {"cuStreamCreate", &cu.stream_create},
                     {"cuStreamSynchronize", &cu.stream_synchronize},
                     {"cuMemAlloc_v2", &cu.mem_alloc},
                     {"cuMemFree_v2", &cu.mem_free},
                     {"cuMemsetD32Async", &cu.set_async},
                     {"cuMemcpyDtoDAsync_v2", &cu.copy_async},
                     {"cuMemcpyHtoD_v2", &cu.copy_to_device},
                     {"cuMemcpyDtoH_v2", &cu.copy_to_host}};
    const char *path = getenv("KOPS_CUDA_DRIVER"); /* libkops loads the same one */
    void *library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW), *context;
    int device;

    if (!library) {
        fprintf(stderr, "no CUDA driver: %s\n", dlerror());
        exit(EXIT_FAILURE);
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *symbol = dlsym(library, functions[i].name);

        if (!symbol) {
            fprintf(stderr, "the CUDA driver has no %s\n", functions[i].name);
            exit(EXIT_FAILURE);
        }
        memcpy(functions[i].into, &symbol, sizeof(symbol));
    }
    check(cu.init(0), "cuInit");
    check(cu.device_get(&device, 0), "cuDeviceGet");
    check(cu.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cu.context_set(context), "cuCtxSetCurrent");
}

#endif

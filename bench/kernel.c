#include "kernel.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { THREADS = 256, ONE = 0x3f800000 };

/* out[i] = a[i] + b[i] for i < n. */
static const char PTX[] = ".version 6.4\n"
                          ".target sm_75\n"
                          ".address_size 64\n"
                          ".visible .entry add(.param .u64 a, .param .u64 b, .param .u64 out, .param .u32 n)\n"
                          "{\n"
                          "  .reg .pred %p;\n"
                          "  .reg .b32 %r<6>;\n"
                          "  .reg .b64 %d<5>;\n"
                          "  .reg .f32 %f<4>;\n"
                          "  ld.param.u64 %d1, [a];\n"
                          "  ld.param.u64 %d2, [b];\n"
                          "  ld.param.u64 %d3, [out];\n"
                          "  ld.param.u32 %r5, [n];\n"
                          "  mov.u32 %r1, %ctaid.x;\n"
                          "  mov.u32 %r2, %ntid.x;\n"
                          "  mov.u32 %r3, %tid.x;\n"
                          "  mad.lo.u32 %r4, %r1, %r2, %r3;\n"
                          "  setp.ge.u32 %p, %r4, %r5;\n"
                          "  @%p bra end;\n"
                          "  mul.wide.u32 %d4, %r4, 4;\n"
                          "  add.u64 %d1, %d1, %d4;\n"
                          "  add.u64 %d2, %d2, %d4;\n"
                          "  add.u64 %d3, %d3, %d4;\n"
                          "  ld.global.f32 %f1, [%d1];\n"
                          "  ld.global.f32 %f2, [%d2];\n"
                          "  add.f32 %f3, %f1, %f2;\n"
                          "  st.global.f32 [%d3], %f3;\n"
                          "end:\n"
                          "  ret;\n"
                          "}\n";

static int load(struct driver *driver)
{
    const char *given = getenv("KOPS_CUDA_DRIVER");
    void *library = dlopen(given ? given : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    cu_handle context;
    void *address;
    int device;

    if (!library) {
        fprintf(stderr, "no CUDA driver: %s\n", dlerror());
        return EXIT_SKIPPED;
    }
    /* Through memory: ISO C knows no cast from void * to a function. */
#define F(name, symbol, optional, parameters)                                                                          \
    address = dlsym(library, symbol);                                                                                  \
    if (!address && !(optional)) {                                                                                     \
        fprintf(stderr, "the CUDA driver has no %s\n", symbol);                                                        \
        return EXIT_SKIPPED;                                                                                           \
    }                                                                                                                  \
    memcpy(&driver->name, &address, sizeof(address));
    DRIVER_FUNCTIONS(F)
#undef F
    if (driver->init(0) || driver->device_get(&device, 0) || driver->context_retain(&context, device) ||
        driver->context_set(context)) {
        fprintf(stderr, "the CUDA driver has no usable device\n");
        return EXIT_SKIPPED;
    }
    return 0;
}

int driver_check(const struct driver *driver, int result, const char *what)
{
    const char *name = NULL;

    if (!result)
        return 0;
    driver->error_name(result, &name);
    fprintf(stderr, "bench: %s: %s (%d)\n", what, name ? name : "?", result);
    return -1;
}

static int find_kernel(struct add_kernel *kernel)
{
    const struct driver *driver = &kernel->driver;
    cu_handle module;
    int r;

    if (driver_check(driver, driver->module_load(&module, PTX), "load the kernel"))
        return -1;
    r = driver->module_function(&kernel->function, module, "add");
    if (!r)
        return 0;
    kernel->function = NULL;
    /* A stand-in driver knows no foreign kernels. Its times mean nothing, but the program can be tried out. */
    if (getenv("KOPS_CUDA_DRIVER") && driver->memory_set_async)
        return 0;
    return driver_check(driver, r, "find the kernel");
}

int add_kernel_prepare(struct add_kernel *kernel, size_t elements)
{
    const struct driver *driver = &kernel->driver;
    int r;

    *kernel = (struct add_kernel){.elements = (uint32_t)elements};
    r = load(&kernel->driver);
    if (r)
        return r;
    for (size_t i = 0; i < ADD_VECTORS; i++) {
        if (driver_check(driver, driver->memory_alloc(&kernel->memory[i], elements * sizeof(float)), "alloc") ||
            driver_check(driver, driver->memory_set(kernel->memory[i], ONE, elements), "set"))
            return 1;
    }
    if (find_kernel(kernel) || driver_check(driver, driver->stream_create(&kernel->stream, 1), "create a stream") ||
        driver_check(driver, driver->stream_synchronize(NULL), "synchronize"))
        return 1;
    return 0;
}

int add_kernel_launch(struct add_kernel *kernel, unsigned a, unsigned b, unsigned out)
{
    const struct driver *driver = &kernel->driver;
    uint32_t n = kernel->elements;
    void *parameters[] = {&kernel->memory[a], &kernel->memory[b], &kernel->memory[out], &n};
    int r = kernel->function ? driver->launch(kernel->function, (n + THREADS - 1) / THREADS, 1, 1, THREADS, 1, 1, 0,
                                              kernel->stream, parameters, NULL)
                             : driver->memory_set_async(kernel->memory[out], ONE, n, kernel->stream);

    return driver_check(driver, r, "launch");
}

int add_kernel_register(struct add_kernel *kernel, kops_client *client)
{
    struct kops_error error;

    for (size_t i = 0; i < ADD_VECTORS; i++) {
        if (check_kops(
                kops_buffer_register_cuda(client, kernel->memory[i], KOPS_ACCESS_RW, &kernel->buffers[i], &error),
                &error, "register"))
            return -1;
        kernel->tensors[i] = kops_vector(kernel->buffers[i], KOPS_F32, kernel->elements);
    }
    return 0;
}

void add_kernel_release(struct add_kernel *kernel)
{
    for (size_t i = 0; i < ADD_VECTORS; i++)
        kernel->buffers[i] = kops_buffer_release(kernel->buffers[i]);
}

void add_kernel_free(struct add_kernel *kernel)
{
    for (size_t i = 0; i < ADD_VECTORS; i++) {
        if (kernel->memory[i])
            kernel->driver.memory_free(kernel->memory[i]);
    }
}

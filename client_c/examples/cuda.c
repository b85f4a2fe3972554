/* Squares a vector that lies in this process's GPU memory, without copying it through the daemon.
 *
 *     cc cuda.c $(pkg-config --cflags --libs kops) -ldl -o cuda && ./cuda
 *
 * It builds without a CUDA toolkit: the few driver functions that it needs are loaded at run time. A program that uses
 * the toolkit calls cudaMalloc() or cuMemAlloc() as usual; only kops_buffer_register_cuda() is new to it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kops/kops.h>

enum { LENGTH = 1 << 20 };

/* The driver's interface, as cuda.h has it. */
static struct {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*context_retain)(void **context, int device);
    int (*context_set)(void *context);
    int (*context_synchronize)(void);
    int (*mem_alloc)(uint64_t *pointer, size_t size);
    int (*mem_free)(uint64_t pointer);
    int (*copy_to_device)(uint64_t to, const void *from, size_t size);
    int (*copy_to_host)(void *to, uint64_t from, size_t size);
} cu;

static void load_driver(void)
{
    static const struct {
        const char *name;
        void *into;
    } functions[] = {{"cuInit", &cu.init},
                     {"cuDeviceGet", &cu.device_get},
                     {"cuDevicePrimaryCtxRetain", &cu.context_retain},
                     {"cuCtxSetCurrent", &cu.context_set},
                     {"cuCtxSynchronize", &cu.context_synchronize},
                     {"cuMemAlloc_v2", &cu.mem_alloc},
                     {"cuMemFree_v2", &cu.mem_free},
                     {"cuMemcpyHtoD_v2", &cu.copy_to_device},
                     {"cuMemcpyDtoH_v2", &cu.copy_to_host}};
    const char *path = getenv("KOPS_CUDA_DRIVER"); /* libkops loads the same one */
    void *library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW);

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
}

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

int main(void)
{
    static float values[LENGTH], squares[LENGTH];
    const size_t size = sizeof(values);
    struct kops_error error;
    struct kops_result result;
    kops_client *client;
    kops_buffer *memory;
    uint64_t pointer;
    void *context;
    int device;

    load_driver();
    check(cu.init(0), "cuInit");
    check(cu.device_get(&device, 0), "cuDeviceGet");
    check(cu.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cu.context_set(context), "cuCtxSetCurrent");

    /* One allocation: the input, then the output. */
    check(cu.mem_alloc(&pointer, 2 * size), "cuMemAlloc");
    for (int i = 0; i < LENGTH; i++)
        values[i] = (float)(i % 4096);
    check(cu.copy_to_device(pointer, values, size), "cuMemcpyHtoD");
    check(cu.context_synchronize(), "cuCtxSynchronize"); /* inputs are ready when the call is made */

    check_kops(kops_connect(NULL, &client, &error), "connecting", &error);
    check_kops(kops_buffer_register_cuda(client, pointer, KOPS_ACCESS_RW, &memory, &error), "registering", &error);
    struct kops_tensor in = kops_vector(memory, KOPS_F32, LENGTH), out = in;
    out.offset = size;
    check_kops(kops_square(client, &in, &out, NULL, &result, &error), "square", &error);

    /* Outputs are ready when it has returned. */
    check(cu.copy_to_host(squares, pointer + size, size), "cuMemcpyDtoH");
    for (int i = 0; i < LENGTH; i++) {
        if (squares[i] != values[i] * values[i]) {
            fprintf(stderr, "element %d is %g, not %g\n", i, (double)squares[i], (double)(values[i] * values[i]));
            return EXIT_FAILURE;
        }
    }
    printf("square, 1048576 x f32: %s on %s, kernel %.1f us, total %.1f us\n", result.variant, result.device,
           result.gpu_us, result.total_us);

    kops_buffer_release(memory);
    kops_close(client);
    check(cu.mem_free(pointer), "cuMemFree");
    return 0;
}

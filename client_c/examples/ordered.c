/* Puts the daemon's ops on a CUDA stream of this process, between work of its own, without waiting for either.
 *
 *     cc ordered.c $(pkg-config --cflags --libs kops) -ldl -o ordered && ./ordered
 *
 * It builds without a CUDA toolkit: the few driver functions that it needs are loaded at run time. A program that uses
 * the toolkit passes its cudaStream_t. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kops/kops.h>

enum { LENGTH = 4096, ROUNDS = 200 };

/* The driver's interface, as cuda.h has it. */
static struct {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*context_retain)(void **context, int device);
    int (*context_set)(void *context);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_synchronize)(void *stream);
    int (*mem_alloc)(uint64_t *pointer, size_t size);
    int (*mem_free)(uint64_t pointer);
    int (*set_async)(uint64_t to, unsigned value, size_t n, void *stream);
    int (*copy_async)(uint64_t to, uint64_t from, size_t size, void *stream);
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
                     {"cuStreamCreate", &cu.stream_create},
                     {"cuStreamSynchronize", &cu.stream_synchronize},
                     {"cuMemAlloc_v2", &cu.mem_alloc},
                     {"cuMemFree_v2", &cu.mem_free},
                     {"cuMemsetD32Async", &cu.set_async},
                     {"cuMemcpyDtoDAsync_v2", &cu.copy_async},
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
    static float sums[LENGTH];
    const size_t size = sizeof(sums);
    struct kops_error error;
    kops_client *client;
    kops_buffer *memory;
    uint64_t pointer;
    void *context, *stream;
    int device;

    load_driver();
    check(cu.init(0), "cuInit");
    check(cu.device_get(&device, 0), "cuDeviceGet");
    check(cu.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cu.context_set(context), "cuCtxSetCurrent");
    check(cu.stream_create(&stream, 1), "cuStreamCreate");
    check(cu.mem_alloc(&pointer, 3 * size), "cuMemAlloc"); /* a, b, a + b */

    check_kops(kops_connect(NULL, &client, &error), "connecting", &error);
    if (!kops_info_feature(client, "ordered")) {
        fprintf(stderr, "the daemon has no ordered calls\n");
        return EXIT_FAILURE;
    }
    check_kops(kops_buffer_register_cuda(client, pointer, KOPS_ACCESS_RW, &memory, &error), "registering", &error);
    struct kops_tensor in[2] = {kops_vector(memory, KOPS_F32, LENGTH), kops_vector(memory, KOPS_F32, LENGTH)};
    struct kops_tensor out = in[0];
    in[1].offset = size;
    out.offset = 2 * size;
    const struct kops_request add = {.op = "add", .inputs = in, .n_inputs = 2, .outputs = &out, .n_outputs = 1};

    /* a = 0, b = 1; then a round: out = a + b (the daemon's), a = out (ours). Nothing waits on the processor. */
    check(cu.set_async(pointer, 0, LENGTH, stream), "cuMemsetD32Async");
    check(cu.set_async(pointer + size, 0x3f800000, LENGTH, stream), "cuMemsetD32Async");
    for (int i = 0; i < ROUNDS; i++) {
        check_kops(kops_enqueue(client, &add, stream, &error), "add", &error);
        check(cu.copy_async(pointer, pointer + 2 * size, size, stream), "cuMemcpyDtoDAsync");
    }
    /* In a batch the daemon's ops follow each other without regard to the stream. */
    check_kops(kops_batch_begin(client, stream, &error), "begin", &error);
    for (int i = 0; i < ROUNDS; i++)
        check_kops(kops_enqueue(client, &add, stream, &error), "add", &error);
    check_kops(kops_batch_end(client, stream, &error), "end", &error);

    check_kops(kops_synchronize(client, stream, 0, &error), "the ops", &error); /* what failed, if something did */
    check(cu.stream_synchronize(stream), "cuStreamSynchronize");
    check(cu.copy_to_host(sums, pointer + 2 * size, size), "cuMemcpyDtoH");
    for (int i = 0; i < LENGTH; i++) {
        if (sums[i] != ROUNDS + 1) {
            fprintf(stderr, "element %d is %g, not %d\n", i, (double)sums[i], ROUNDS + 1);
            return EXIT_FAILURE;
        }
    }
    printf("%d links of a chain and a batch of %d, in order\n", ROUNDS, ROUNDS);

    kops_buffer_release(memory);
    kops_close(client);
    check(cu.mem_free(pointer), "cuMemFree");
    return 0;
}

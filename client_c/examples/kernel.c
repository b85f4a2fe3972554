/* Compiles a kernel of one's own in the daemon and launches it on this process's GPU memory.
 *
 *     cc kernel.c $(pkg-config --cflags --libs kops) -ldl -o kernel && ./kernel
 *
 * The daemon compiles the source once for every process that asks; neither nvcc nor headers are needed here. As in
 * cuda.c, the few functions of the CUDA driver that this program needs are loaded at run time. Where this user may not
 * launch kernels of their own, it says so and ends with status 77. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kops/kops.h>

enum { LENGTH = 1000003 };

static const char source_text[] =
    "extern \"C\" __global__ void add2_kernel(float *c, const float *a, const float *b, int n)\n"
    "{\n"
    "    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)\n"
    "        c[i] = a[i] + b[i];\n"
    "}\n";

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

/* Compiles; prints what the compiler says where it refuses. */
static kops_kernel *compile(kops_client *client)
{
    static const struct kops_param params[] = {
        {.name = "c", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .elements = "n"},
        {.name = "a", .kind = KOPS_PARAM_IN, .dtype = KOPS_F32, .elements = "n"},
        {.name = "b", .kind = KOPS_PARAM_IN, .dtype = KOPS_F32, .elements = "n"},
        {.name = "n", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_I32},
    };
    const struct kops_source source = {.text = source_text, .name = "add2.cu"};
    const struct kops_signature signature = {
        .entry = "add2_kernel",
        .params = params,
        .n_params = sizeof(params) / sizeof(params[0]),
        .geometry = {.grid = {"min(ceil_div(n, 256), 32 * multiprocessors)"}, .block = {"256"}}};
    struct kops_error error;
    kops_kernel *kernel;
    char *log;

    if (kops_kernel_compile(client, &source, &signature, &kernel, &log, &error)) {
        const bool not_here = error.code == KOPS_ERR_UNSUPPORTED || error.code == KOPS_ERR_PERMISSION_DENIED;

        fprintf(stderr, "%s\n%s", error.message, log ? log : "");
        kops_log_free(log);
        exit(not_here ? 77 : EXIT_FAILURE);
    }
    return kernel;
}

int main(void)
{
    static float a[LENGTH], b[LENGTH], c[LENGTH];
    const size_t size = sizeof(a);
    struct kops_error error;
    struct kops_result result;
    kops_client *client;
    kops_buffer *memory;
    kops_kernel *add2;
    uint64_t pointer;
    void *context;
    int device;

    load_driver();
    check(cu.init(0), "cuInit");
    check(cu.device_get(&device, 0), "cuDeviceGet");
    check(cu.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cu.context_set(context), "cuCtxSetCurrent");
    check_kops(kops_connect(NULL, &client, &error), "connecting", &error);
    add2 = compile(client);

    /* One allocation: a, b, c. */
    check(cu.mem_alloc(&pointer, 3 * size), "cuMemAlloc");
    for (int i = 0; i < LENGTH; i++) {
        a[i] = (float)i;
        b[i] = (float)(2 * i + 1);
    }
    check(cu.copy_to_device(pointer, a, size), "cuMemcpyHtoD");
    check(cu.copy_to_device(pointer + size, b, size), "cuMemcpyHtoD");
    check(cu.context_synchronize(), "cuCtxSynchronize"); /* inputs are ready when the call is made */

    check_kops(kops_buffer_register_cuda(client, pointer, KOPS_ACCESS_RW, &memory, &error), "registering", &error);
    struct kops_tensor ta = kops_vector(memory, KOPS_F32, LENGTH), tb = ta, tc = ta;
    tb.offset = size;
    tc.offset = 2 * size;
    const struct kops_argument args[] = {kops_arg_tensor(&tc), kops_arg_tensor(&ta), kops_arg_tensor(&tb),
                                         kops_arg_int(LENGTH)};
    check_kops(kops_kernel_launch(add2, args, 4, NULL, &result, &error), "add2_kernel", &error);

    /* Outputs are ready when it has returned. */
    check(cu.copy_to_host(c, pointer + 2 * size, size), "cuMemcpyDtoH");
    for (int i = 0; i < LENGTH; i++) {
        if (c[i] != a[i] + b[i]) {
            fprintf(stderr, "element %d is %g, not %g\n", i, (double)c[i], (double)(a[i] + b[i]));
            return EXIT_FAILURE;
        }
    }
    printf("add2_kernel, %d x f32 on %s: compiled in %.1f ms (found: %s), kernel %.1f us, total %.1f us\n", LENGTH,
           result.device, kops_module_info(kops_kernel_module(add2))->compile_us * 1e-3,
           kops_module_info(kops_kernel_module(add2))->cached, result.gpu_us, result.total_us);

    kops_kernel_free(add2);
    kops_buffer_release(memory);
    kops_close(client);
    check(cu.mem_free(pointer), "cuMemFree");
    return 0;
}

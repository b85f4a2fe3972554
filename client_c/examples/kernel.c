/* Compiles a kernel of one's own in the daemon and launches it on this process's GPU memory.
 *
 *     cc kernel.c $(pkg-config --cflags --libs kops) -ldl -o kernel && ./kernel
 *
 * The daemon compiles the source once for every process that asks; neither nvcc nor headers are needed here, and
 * driver.h loads the few functions of the CUDA driver at run time. Where this user may not launch kernels of their own,
 * the program says so and ends with status 77. */
#include "driver.h"

enum { LENGTH = 1000003 };

static const char source_text[] =
    "extern \"C\" __global__ void add2_kernel(float *c, const float *a, const float *b, int n)\n"
    "{\n"
    "    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)\n"
    "        c[i] = a[i] + b[i];\n"
    "}\n";

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

    start_cuda();
    check_kops(kops_connect(NULL, &client, &error), "connecting", &error);
    add2 = compile(client);

    /* A single allocation: a, b, c. */
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

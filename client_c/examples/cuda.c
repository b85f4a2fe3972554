/* Squares a vector that lies in this process's GPU memory, without copying it through the daemon.
 *
 *     cc cuda.c $(pkg-config --cflags --libs kops) -ldl -o cuda && ./cuda
 *
 * It builds without a CUDA toolkit: driver.h loads the few driver functions at run time. A program that uses the
 * toolkit calls cudaMalloc() or cuMemAlloc() as usual; only kops_buffer_register_cuda() is new to it. */
#include "driver.h"

enum { LENGTH = 1 << 20 };

int main(void)
{
    static float values[LENGTH], squares[LENGTH];
    const size_t size = sizeof(values);
    struct kops_error error;
    struct kops_result result;
    kops_client *client;
    kops_buffer *memory;
    uint64_t pointer;

    start_cuda();

    /* A single allocation: the input, then the output. */
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

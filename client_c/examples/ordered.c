/* Puts the daemon's ops on a CUDA stream of this process, between work of its own, without waiting for either.
 *
 *     cc ordered.c $(pkg-config --cflags --libs kops) -ldl -o ordered && ./ordered
 *
 * It builds without a CUDA toolkit: driver.h loads the few driver functions at run time. A program that uses the
 * toolkit passes its cudaStream_t. */
#include "driver.h"

enum { LENGTH = 4096, ROUNDS = 200 };

int main(void)
{
    static float sums[LENGTH];
    const size_t size = sizeof(sums);
    struct kops_error error;
    kops_client *client;
    kops_buffer *memory;
    uint64_t pointer;
    void *stream;

    start_cuda();
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

    check_kops(kops_synchronize(client, stream, 0, &error), "the ops", &error); /* fails if an op did */
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

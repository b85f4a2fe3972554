/* The demo's C client: add, square and gemm on shared memory, through libkops.
 *
 * For every op it prints one line of JSON with the timings, and writes `<op>.<dtype>.bin` into a folder: inputs and
 * output one after the other, for the demo to compare with NumPy. One thread. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kops/kops.h>

enum { MAX_TENSORS = 3, REPEAT = 20, WARMUP = 3 };

/* One op on matrices that lie one after the other in one buffer. */
struct work {
    const char *op;
    enum kops_dtype dtype;
    size_t n_inputs;
    int64_t shapes[MAX_TENSORS][2]; /* inputs, then the output */
};

static size_t bytes_of(const struct work *work, size_t tensor)
{
    return (size_t)work->shapes[tensor][0] * (size_t)work->shapes[tensor][1] * kops_dtype_size(work->dtype);
}

/* Tensors start at multiples of 64 bytes. */
static size_t room_of(const struct work *work, size_t tensor)
{
    return (bytes_of(work, tensor) + 63) / 64 * 64;
}

static void fill(void *data, size_t count, enum kops_dtype dtype, uint64_t *state)
{
    for (size_t i = 0; i < count; i++) {
        float value;
        uint32_t bits;

        *state = *state * 6364136223846793005U + 1442695040888963407U;
        value = (float)(*state >> 40) / (float)(1 << 23) - 1.0f;
        memcpy(&bits, &value, sizeof(bits));
        if (dtype == KOPS_F32)
            ((float *)data)[i] = value;
        else if (dtype == KOPS_F64)
            ((double *)data)[i] = value;
        else
            ((uint16_t *)data)[i] = (uint16_t)(bits >> 16); /* bf16: the upper half */
    }
}

static int write_tensors(const char *folder, const struct work *work, const struct kops_tensor *tensors,
                         const char *data)
{
    char path[4096];
    FILE *file;
    int r = 0;

    snprintf(path, sizeof(path), "%s/%s.%s.bin", folder, work->op, kops_dtype_name(work->dtype));
    file = fopen(path, "wb");
    if (!file)
        return -errno;
    for (size_t i = 0; i <= work->n_inputs; i++) {
        if (fwrite(data + tensors[i].offset, 1, bytes_of(work, i), file) != bytes_of(work, i))
            r = -EIO;
    }
    return fclose(file) ? -EIO : r;
}

static void print_time(const char *key, double value)
{
    if (!isnan(value))
        printf(", \"%s\": %.3f", key, value);
}

static void print_result(const struct work *work, const struct kops_result *result)
{
    printf("{\"op\": \"%s\", \"dtype\": \"%s\", \"variant\": \"%s\", \"device\": \"%s\", \"shapes\": [", work->op,
           kops_dtype_name(work->dtype), result->variant, result->device);
    for (size_t i = 0; i <= work->n_inputs; i++)
        printf("%s[%lld, %lld]", i ? ", " : "", (long long)work->shapes[i][0], (long long)work->shapes[i][1]);
    printf("]");
    print_time("gpu_us", result->gpu_us);
    print_time("host_us", result->host_us);
    print_time("total_us", result->total_us);
    printf("}\n");
}

/* Runs once so that memory is there, once for the result and its time, and `REPEAT` times for the kernel's. */
static int run(kops_client *client, const struct work *work, const char *folder)
{
    struct kops_tensor tensors[MAX_TENSORS];
    struct kops_request request = {.op = work->op, .inputs = tensors, .n_inputs = work->n_inputs};
    struct kops_result result, repeated;
    struct kops_error error;
    kops_buffer *buffer;
    size_t size = 0;
    uint64_t state = 1;
    char *data;
    int r;

    for (size_t i = 0; i <= work->n_inputs; i++)
        size += room_of(work, i);
    r = -1;
    if (kops_buffer_alloc_shared(client, size, &buffer, &error)) {
        fprintf(stderr, "demo_client: %s\n", error.message);
        return r;
    }
    data = kops_buffer_data(buffer);
    size = 0;
    for (size_t i = 0; i <= work->n_inputs; i++) {
        tensors[i] = kops_matrix(buffer, work->dtype, work->shapes[i][0], work->shapes[i][1]);
        tensors[i].offset = size;
        size += room_of(work, i);
        if (i < work->n_inputs)
            fill(data + tensors[i].offset, (size_t)kops_tensor_count(&tensors[i]), work->dtype, &state);
    }
    request.outputs = &tensors[work->n_inputs];
    request.n_outputs = 1;
    if (kops_run(client, &request, NULL, &error) || kops_run(client, &request, &result, &error))
        goto failed;
    request.options.warmup = WARMUP;
    request.options.repeat = REPEAT;
    if (kops_run(client, &request, &repeated, &error))
        goto failed;
    result.gpu_us = repeated.gpu_us;
    result.host_us = repeated.host_us;
    print_result(work, &result);
    r = write_tensors(folder, work, tensors, data);
    if (r)
        fprintf(stderr, "demo_client: %s: %s\n", folder, strerror(-r));
    goto release;

failed:
    fprintf(stderr, "demo_client: %s: %s: %s\n", work->op, kops_code_name(error.code), error.message);
release:
    kops_buffer_release(buffer);
    return r;
}

int main(int argc, char **argv)
{
    static const struct work works[] = {
        {"add", KOPS_F32, 2, {{1024, 1024}, {1024, 1024}, {1024, 1024}}},
        {"square", KOPS_F64, 1, {{640, 1000}, {640, 1000}}},
        {"square", KOPS_BF16, 1, {{640, 1000}, {640, 1000}}},
        {"gemm", KOPS_F32, 2, {{640, 640}, {640, 640}, {640, 640}}},
        {"gemm", KOPS_BF16, 2, {{640, 320}, {320, 640}, {640, 640}}},
    };
    struct kops_connect_options options = {0};
    struct kops_error error;
    kops_client *client;
    int failed = 0;

    if (argc != 3) {
        fprintf(stderr, "usage: %s SOCKET FOLDER\n", argv[0]);
        return 2;
    }
    options.socket = argv[1];
    options.name = "demo_client";
    if (kops_connect(&options, &client, &error)) {
        fprintf(stderr, "demo_client: %s\n", error.message);
        return 1;
    }
    for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++)
        failed |= run(client, &works[i], argv[2]) != 0;
    kops_close(client);
    return failed;
}

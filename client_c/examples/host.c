/* Adds two vectors and multiplies two matrices in shared memory; no GPU, no CUDA needed here.
 *
 *     cc host.c $(pkg-config --cflags --libs kops) -o host && ./host
 *
 * The daemon reads and writes this very memory. On a machine with a GPU it runs there, and the daemon copies. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <kops/kops.h>

enum { LENGTH = 1 << 20, M = 640, N = 640, K = 640 };

static void die(const char *what, const struct kops_error *error)
{
    fprintf(stderr, "%s: %s (%s)\n", what, error->message, kops_code_name(error->code));
    exit(EXIT_FAILURE);
}

static void print_result(const char *what, const struct kops_result *r)
{
    double kernel_us = isnan(r->gpu_us) ? r->host_us : r->gpu_us;

    printf("%-28s %-12s kernel %9.1f us   total %9.1f us   on %s\n", what, r->variant, kernel_us, r->total_us,
           r->device);
}

static void add(kops_client *client)
{
    struct kops_error error;
    struct kops_result result;
    kops_buffer *memory;

    /* A single buffer for all three vectors: a tensor is a view, anywhere in a buffer. */
    if (kops_buffer_alloc_shared(client, 3 * LENGTH * sizeof(float), &memory, &error))
        die("allocating shared memory", &error);
    struct kops_tensor a = kops_vector(memory, KOPS_F32, LENGTH), b = a, out = a;
    b.offset = LENGTH * sizeof(float);
    out.offset = 2 * LENGTH * sizeof(float);

    float *values = kops_buffer_data(memory);
    for (int i = 0; i < LENGTH; i++) {
        values[i] = (float)i;
        values[LENGTH + i] = 0.5F;
    }
    if (kops_add(client, &a, &b, &out, NULL, &result, &error))
        die("add", &error);
    for (int i = 0; i < LENGTH; i++) {
        if (values[2 * LENGTH + i] != (float)i + 0.5F) {
            fprintf(stderr, "add: element %d is %g\n", i, (double)values[2 * LENGTH + i]);
            exit(EXIT_FAILURE);
        }
    }
    print_result("add, 1048576 x f32", &result);
    kops_buffer_release(memory);
}

static void gemm(kops_client *client)
{
    struct kops_error error;
    struct kops_result result;
    kops_buffer *a, *b, *c;

    if (kops_buffer_alloc_shared(client, sizeof(double[M][K]), &a, &error) ||
        kops_buffer_alloc_shared(client, sizeof(double[K][N]), &b, &error) ||
        kops_buffer_alloc_shared(client, sizeof(double[M][N]), &c, &error))
        die("allocating shared memory", &error);
    double *av = kops_buffer_data(a), *bv = kops_buffer_data(b), *cv = kops_buffer_data(c);
    for (int i = 0; i < M * K; i++)
        av[i] = i % 7 - 3;
    for (int i = 0; i < K * N; i++)
        bv[i] = i % 5 - 2;

    struct kops_tensor at = kops_matrix(a, KOPS_F64, M, K), bt = kops_matrix(b, KOPS_F64, K, N);
    struct kops_tensor ct = kops_matrix(c, KOPS_F64, M, N);
    /* Ten timed executions after two untimed ones: `result` then has their spread, too. */
    struct kops_options options = {.warmup = 2, .repeat = 10};
    if (kops_gemm(client, &at, &bt, &ct, NULL, &options, &result, &error))
        die("gemm", &error);

    const int i = 123, j = 456; /* small integers: the products are exact */
    double expected = 0;
    for (int k = 0; k < K; k++)
        expected += av[i * K + k] * bv[k * N + j];
    if (cv[i * N + j] != expected) {
        fprintf(stderr, "gemm: element (%d, %d) is %g, not %g\n", i, j, cv[i * N + j], expected);
        exit(EXIT_FAILURE);
    }
    print_result("gemm, 640 x 640 x 640 f64", &result);
    printf("%-28s min %.1f us, median %.1f us, max %.1f us\n", "  over ten executions", result.min_us, result.median_us,
           result.max_us);
    kops_buffer_release(a);
    kops_buffer_release(b);
    kops_buffer_release(c);
}

int main(void)
{
    struct kops_error error;
    kops_client *client;

    if (kops_connect(NULL, &client, &error))
        die("connecting", &error);
    add(client);
    gemm(client);
    kops_close(client);
    return 0;
}

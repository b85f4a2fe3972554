/* Computes d = (a + b)², then the same for other inputs, with one request each; no GPU, no CUDA needed here.
 *
 *     cc program.c $(pkg-config --cflags --libs kops) -o program && ./program
 *
 * A program is defined once and kept by the daemon, on a GPU as a CUDA graph. A run sends its id, and which memory to
 * use instead of the definition's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <kops/kops.h>

enum { LENGTH = 1 << 16, TENSORS = 4 };

static void check(enum kops_code code, const char *what, const struct kops_error *error)
{
    if (code) {
        fprintf(stderr, "%s: %s (%s)\n", what, error->message, kops_code_name(code));
        exit(EXIT_FAILURE);
    }
}

static void expect(const char *what, const float *values, float expected)
{
    for (int i = 0; i < LENGTH; i++) {
        if (values[i] != expected) {
            fprintf(stderr, "%s: element %d is %g, not %g\n", what, i, (double)values[i], (double)expected);
            exit(EXIT_FAILURE);
        }
    }
}

int main(void)
{
    const size_t size = LENGTH * sizeof(float);
    struct kops_tensor tensors[TENSORS]; /* a, b, a + b, its square */
    struct kops_error error;
    struct kops_result result;
    kops_client *client;
    kops_buffer *memory, *other;
    kops_program *program;

    check(kops_connect(NULL, &client, &error), "connecting", &error);
    check(kops_buffer_alloc_shared(client, TENSORS * size, &memory, &error), "allocating", &error);
    check(kops_buffer_alloc_shared(client, size, &other, &error), "allocating", &error);
    for (size_t i = 0; i < TENSORS; i++) {
        tensors[i] = kops_vector(memory, KOPS_F32, LENGTH);
        tensors[i].offset = i * size;
    }
    float *values = kops_buffer_data(memory), *others = kops_buffer_data(other);
    for (int i = 0; i < LENGTH; i++) {
        values[i] = 1;
        values[LENGTH + i] = 2;
        others[i] = 10;
    }

    /* Steps name their operands by the tensors' places in the list. */
    const uint32_t a_and_b[] = {0, 1}, sum[] = {2}, square[] = {3};
    const struct kops_step steps[] = {
        {.op = "add", .inputs = a_and_b, .n_inputs = 2, .outputs = sum, .n_outputs = 1},
        {.op = "square", .inputs = sum, .n_inputs = 1, .outputs = square, .n_outputs = 1},
    };
    const struct kops_sequence sequence = {tensors, TENSORS, steps, 2};
    check(kops_program_define(client, &sequence, NULL, &program, &error), "defining", &error);

    check(kops_program_run(program, NULL, 0, NULL, &result, &error), "running", &error);
    expect("(1 + 2)²", values + 3 * (size_t)LENGTH, 9);

    const struct kops_binding instead_of_a = {.tensor = 0, .buffer = other};
    check(kops_program_run(program, &instead_of_a, 1, NULL, &result, &error), "running on other memory", &error);
    expect("(10 + 2)²", values + 3 * (size_t)LENGTH, 144);
    printf("program of 2 steps, 65536 x f32: kernels %.1f us, total %.1f us on %s\n",
           isnan(result.gpu_us) ? result.host_us : result.gpu_us, result.total_us, result.device);

    kops_program_release(program);
    kops_buffer_release(other);
    kops_buffer_release(memory);
    kops_close(client);
    return 0;
}

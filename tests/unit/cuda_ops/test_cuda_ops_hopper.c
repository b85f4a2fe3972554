/* Bias and activation in the kernels of sm_90a: each sum of each thread against the reference, at the place that PTX's
 * document gives the sums of wgmma. */
#include <math.h>

#include "emulator.h"
#include "guarded.h"
#include "ops/params.h"

enum { THREADS = 128, CONSUMERS = 2, ROWS = 128, COLUMNS = 256 };

static double activated(double x, unsigned activation)
{
    if (activation == CUDA_OPS_RELU)
        return x < 0 ? 0 : x;
    if (activation == CUDA_OPS_GELU)
        return 0.5 * x * erfc(-x * 0.70710678118654752);
    if (activation == CUDA_OPS_GELU_TANH)
        return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    return x;
}

/* Sums from -16 to 16 over the tile, most of them near 0. */
static float sum_at(int row, int column)
{
    const double x = (double)((row * 131 + column * 17) % 4097) / 2048 - 1;

    return (float)(16 * x * fabs(x));
}

static uint16_t *make_bias(size_t n)
{
    uint16_t *bias = (uint16_t *)(void *)guarded_new(n * sizeof(uint16_t));

    for (size_t i = 0; i < n; i++)
        bias[i] = (uint16_t)(0x3f80 + i % 3 * 0x40); /* bf16: 1, 1.5, 2 */
    return bias;
}

static double bias_at(size_t i)
{
    return 1 + 0.5 * (double)(i % 3);
}

static void check(const struct cuda_ops_gemm_mapped *p, const int place[3])
{
    for (unsigned consumer = 0; consumer < CONSUMERS; consumer++)
        for (unsigned thread = 0; thread < THREADS; thread++) {
            float sums[EMULATED_HOPPER_SUMS];
            int row[EMULATED_HOPPER_SUMS], column[EMULATED_HOPPER_SUMS];

            for (unsigned n = 0; n < EMULATED_HOPPER_SUMS; n++) {
                row[n] = place[0] + (int)(consumer * 64 + thread / 32 * 16 + thread % 32 / 4 + n / 2 % 2 * 8);
                column[n] = place[1] + (int)(n / 4 * 8 + thread % 4 * 2 + n % 2);
                sums[n] = sum_at(row[n], column[n]);
            }
            emulate_hopper_finish(p, 1, place, consumer, thread, sums);
            for (unsigned n = 0; n < EMULATED_HOPPER_SUMS; n++) {
                const size_t i = (size_t)place[2] * p->bias_batch + (size_t)row[n] * p->bias_row +
                                 (size_t)column[n] * p->bias_column;
                double expected;

                if ((unsigned)row[n] >= p->m || (unsigned)column[n] >= p->n)
                    continue;
                expected = activated((double)p->alpha * (double)sum_at(row[n], column[n]) + bias_at(i), p->activation);
                if (!(fabs((double)sums[n] - expected) <= 1e-6 + 1e-6 * fabs(expected)))
                    fail_msg("activation %u, row %d, column %d: %g, not %g", p->activation, row[n], column[n],
                             (double)sums[n], expected);
            }
        }
}

TEST(every_sum_gets_its_bias_and_activation)
{
    for (unsigned activation = CUDA_OPS_NONE; activation <= CUDA_OPS_GELU_TANH; activation++)
        for (unsigned kind = 0; kind < 4; kind++) {
            /* A vector in pairs, one without, one along rows, a matrix. */
            static const uint64_t strides[][2] = {{0, 1}, {0, 2}, {1, 0}, {300, 1}};
            const int place[] = {128, 0, 1};
            struct cuda_ops_gemm_mapped p = {.m = 250, .n = 253, .k = 1, .batch_count = 2, .alpha = 0.5f};
            size_t n;

            p.activation = activation;
            p.bias_row = strides[kind][0];
            p.bias_column = strides[kind][1];
            p.bias_batch = 4;
            p.bias_pairs = kind == 0;
            n = p.bias_batch + (p.m - 1) * p.bias_row + (p.n - 1) * p.bias_column + 1;
            if (kind == 0) /* it begins on 4 bytes */
                n += n % 2;
            p.bias_address = (uint64_t)(uintptr_t)make_bias(n);
            check(&p, place);
        }
}

/* As the formulas of the op say, and those of the other kernels do. */
TEST(infinite_and_undefined_sums_stay_what_they_are)
{
    static const struct {
        float sum;
        unsigned activation;
        float expected;
    } cases[] = {{INFINITY, CUDA_OPS_GELU, INFINITY},
                 {-INFINITY, CUDA_OPS_GELU, NAN},
                 {NAN, CUDA_OPS_GELU, NAN},
                 {INFINITY, CUDA_OPS_GELU_TANH, INFINITY},
                 {-INFINITY, CUDA_OPS_GELU_TANH, NAN},
                 {NAN, CUDA_OPS_GELU_TANH, NAN},
                 {NAN, CUDA_OPS_RELU, NAN},
                 {-INFINITY, CUDA_OPS_RELU, 0},
                 {3e38f, CUDA_OPS_GELU, 3e38f},
                 {-3e38f, CUDA_OPS_GELU, 0},
                 {3e38f, CUDA_OPS_GELU_TANH, 3e38f},
                 {-3e38f, CUDA_OPS_GELU_TANH, 0},
                 {-1e4f, CUDA_OPS_GELU, 0},
                 {1e4f, CUDA_OPS_GELU, 1e4f}};
    const int place[] = {0, 0, 0};
    const uint16_t zero[2] = {0, 0};

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct cuda_ops_gemm_mapped p = {.m = 128,
                                               .n = 256,
                                               .alpha = 1,
                                               .activation = cases[i].activation,
                                               .bias_address = (uint64_t)(uintptr_t)zero};
        float sums[EMULATED_HOPPER_SUMS];

        for (unsigned n = 0; n < EMULATED_HOPPER_SUMS; n++)
            sums[n] = cases[i].sum;
        emulate_hopper_finish(&p, 1, place, 0, 0, sums);
        if (isnan(cases[i].expected) ? !isnan(sums[0]) : sums[0] != cases[i].expected)
            fail_msg("activation %u of %g is %g", cases[i].activation, (double)cases[i].sum, (double)sums[0]);
    }
}

/* The products of the stand-in for cuBLASLt. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fake_blaslt.h"
#include "kernels/host/convert.h"

double fake_load(const void *base, cudaDataType type, int64_t index)
{
    switch (type) {
    case CUDA_R_8F_E4M3:
        return (double)e4m3_to_f32(((const uint8_t *)base)[index]);
    case CUDA_R_8F_E5M2:
        return (double)e5m2_to_f32(((const uint8_t *)base)[index]);
    case CUDA_R_16BF:
        return (double)bf16_to_f32(((const uint16_t *)base)[index]);
    case CUDA_R_16F:
        return (double)f16_to_f32(((const uint16_t *)base)[index]);
    case CUDA_R_64F:
        return ((const double *)base)[index];
    default:
        return (double)((const float *)base)[index];
    }
}

static void store(void *base, cudaDataType type, int64_t index, double value)
{
    switch (type) {
    case CUDA_R_16BF:
        ((uint16_t *)base)[index] = f32_to_bf16((float)value);
        break;
    case CUDA_R_16F:
        ((uint16_t *)base)[index] = f32_to_f16((float)value);
        break;
    case CUDA_R_64F:
        ((double *)base)[index] = value;
        break;
    default:
        ((float *)base)[index] = (float)value;
    }
}

/* A matrix of one batch, or its transpose, as rows of doubles. */
static double *rows_of(const void *base, const struct layout *l, int64_t batch, bool transpose)
{
    const int64_t rows = (int64_t)(transpose ? l->columns : l->rows);
    const int64_t columns = (int64_t)(transpose ? l->rows : l->columns);
    double *values = malloc((size_t)(rows * columns) * sizeof(*values));

    for (int64_t i = 0; values && i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            values[i * columns + j] =
                fake_load(base, l->type, batch * l->batch_stride + (transpose ? j + i * l->ld : i + j * l->ld));
    return values;
}

/* What the library's epilogue makes of element i of a column. */
static double finish(const struct operation *o, double x, cudaDataType type, int64_t i)
{
    if (o->epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        return x;
    x += fake_load(o->bias, type, i);
    if (o->epilogue == CUBLASLT_EPILOGUE_RELU_BIAS)
        return x > 0 ? x : 0;
    if (o->epilogue == CUBLASLT_EPILOGUE_GELU_BIAS)
        return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    if (o->epilogue != CUBLASLT_EPILOGUE_BIAS)
        fake_blaslt_wrong++;
    return x;
}

/* Of row or column i of D. */
static double scale_of(const struct operation *o, unsigned of, int64_t i)
{
    const bool is_vector = o->modes[of] == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;

    return o->scales[of] ? (double)((const float *)o->scales[of])[is_vector ? i : 0] : 1;
}

void fake_product(const struct operation *o, double alpha, double beta, const void *a, const struct layout *la,
                  const void *b, const struct layout *lb, void *out, const struct layout *l)
{
    const int64_t depth = (int64_t)(o->transpose_a ? la->rows : la->columns), columns = (int64_t)l->columns;

    for (int64_t batch = 0; batch < l->batch_count; batch++) {
        double *x = rows_of(a, la, batch, o->transpose_a), *y = rows_of(b, lb, batch, o->transpose_b);
        double *sums = malloc((size_t)columns * sizeof(*sums));

        for (int64_t i = 0; x && y && sums && i < (int64_t)l->rows; i++) {
            memset(sums, 0, (size_t)columns * sizeof(*sums));
            for (int64_t k = 0; k < depth; k++)
                for (int64_t j = 0; j < columns; j++)
                    sums[j] += x[i * depth + k] * y[k * columns + j];
            for (int64_t j = 0; j < columns; j++) {
                int64_t at = batch * l->batch_stride + i + j * l->ld;
                double sum = sums[j];

                sum *= alpha * scale_of(o, 0, i) * scale_of(o, 1, j);
                if (beta == 1 && fake_has_16_bits(l->type)) {
                    _Alignas(8) unsigned char rounded[8];

                    store(rounded, l->type, 0, sum);
                    sum = fake_load(rounded, l->type, 0);
                }
                sum += beta != 0.0 ? beta * fake_load(out, l->type, at) : 0.0;
                store(out, l->type, at, finish(o, sum, l->type, i));
            }
        }
        fake_blaslt_wrong += !x || !y || !sums;
        free(x);
        free(y);
        free(sums);
    }
}

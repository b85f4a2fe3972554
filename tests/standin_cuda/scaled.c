/* The kernels of scaled_gemm, as plain loops over what params_scaled.h says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/ops/params_scaled.h"
#include "standin.h"

static unsigned out_size(const struct cuda_ops_gemm_scaled *p)
{
    return p->out_type == CUDA_OPS_OUT_F32 ? 4 : 2;
}

bool scaled_uses(const struct cuda_ops_gemm_scaled *p, struct op *op)
{
    const struct cuda_ops_gemm *g = &p->gemm;

    if (p->a_format > CUDA_OPS_E5M2 || p->b_format > CUDA_OPS_E5M2 || p->out_type > CUDA_OPS_OUT_BF16 ||
        g->alpha != 1 || g->beta != 0 || g->bias.address || g->activation || g->out_wide || !gemm_batches_agree(g))
        return false;
    return !g->m || !g->n ||
           (gemm_matrix_uses(out_size(p), g, &g->out, g->m, g->n, true, op) &&
            gemm_matrix_uses(1, g, &g->a, g->m, g->k, false, op) &&
            gemm_matrix_uses(1, g, &g->b, g->k, g->n, false, op) &&
            gemm_matrix_uses(sizeof(float), g, &p->scale_a, g->m, g->n, false, op) &&
            gemm_matrix_uses(sizeof(float), g, &p->scale_b, g->m, g->n, false, op));
}

static float load_f8(uint64_t address, uint32_t format)
{
    const uint8_t bits = *(const uint8_t *)(uintptr_t)address;

    return format == CUDA_OPS_E4M3 ? e4m3_to_float(bits) : e5m2_to_float(bits);
}

static float load_scale(const struct cuda_ops_matrix *x, uint64_t from, uint64_t i, uint64_t j)
{
    return ((const float *)(uintptr_t)from)[i * x->row + j * x->column];
}

static void store(uint64_t address, uint32_t type, float value)
{
    void *to = (void *)(uintptr_t)address;

    if (type == CUDA_OPS_OUT_F32)
        *(float *)to = value;
    else
        *(uint16_t *)to = type == CUDA_OPS_OUT_F16 ? float_to_half(value) : float_to_bfloat(value);
}

/* b is copied row by row first, and a when its row comes, as numbers: the inner loop runs over neighbours. */
void scaled_run(const struct cuda_ops_gemm_scaled *p)
{
    const struct cuda_ops_gemm *g = &p->gemm;
    float *copy = malloc((g->k + 1) * g->n * sizeof(float) + 1), *row = copy + g->k * g->n;

    if (!copy)
        fprintf(stderr, "cuda_standin: no memory for a gemm of %llu × %llu\n", (unsigned long long)g->k,
                (unsigned long long)g->n);
    for (uint64_t c = 0; copy && c < g->batch_count; c++) {
        const uint64_t a = gemm_batch_address(g, &g->a, c, 1), b = gemm_batch_address(g, &g->b, c, 1),
                       out = gemm_batch_address(g, &g->out, c, out_size(p)),
                       scale_a = gemm_batch_address(g, &p->scale_a, c, sizeof(float)),
                       scale_b = gemm_batch_address(g, &p->scale_b, c, sizeof(float));

        for (uint64_t l = 0; l < g->k; l++)
            for (uint64_t j = 0; j < g->n; j++)
                copy[l * g->n + j] = load_f8(b + l * g->b.row + j * g->b.column, p->b_format);
        for (uint64_t i = 0; i < g->m; i++) {
            memset(row, 0, g->n * sizeof(float));
            for (uint64_t l = 0; l < g->k; l++) {
                const float x = load_f8(a + i * g->a.row + l * g->a.column, p->a_format);

                for (uint64_t j = 0; j < g->n; j++)
                    row[j] += x * copy[l * g->n + j];
            }
            for (uint64_t j = 0; j < g->n; j++)
                store(out + (i * g->out.row + j * g->out.column) * out_size(p), p->out_type,
                      row[j] * load_scale(&p->scale_a, scale_a, i, j) * load_scale(&p->scale_b, scale_b, i, j));
        }
    }
    free(copy);
}

/* Launches of the gemm kernels: chooses the way that operands are read, and the tile. Thread: any. */
#include "plan_launch.h"

#define CONFIG(dtype, name, m, n, c)                                                                                   \
    {                                                                                                                  \
        (m), (n), (c), "kops_gemm_" #dtype "_tiled_" #name, "kops_gemm_" #dtype "_tiled_" #name "_any",                \
            "kops_linear_" #dtype "_tiled_" #name, "kops_linear_" #dtype "_tiled_" #name "_any"                        \
    }

static const struct cuda_ops_gemm_config configs[ELEMENT_COUNT][CUDA_OPS_GEMM_CONFIGS] = {
    [ELEMENT_F32] = {CONFIG(f32, large, 128, 128, 1.0), CONFIG(f32, small, 64, 64, 1.3)},
    [ELEMENT_F64] = {CONFIG(f64, large, 128, 64, 1.0), CONFIG(f64, small, 64, 64, 1.2)},
    [ELEMENT_F16] = {CONFIG(f16, large, 128, 128, 1.0), CONFIG(f16, small, 64, 64, 1.6)},
    [ELEMENT_BF16] = {CONFIG(bf16, large, 128, 128, 1.0), CONFIG(bf16, small, 64, 64, 1.6)},
};

const struct cuda_ops_gemm_config *cuda_ops_gemm_configs(enum dtype dtype)
{
    return configs[cuda_ops_element(dtype)];
}

static uint64_t tiles_of(uint64_t extent, uint64_t tile)
{
    return (extent - 1) / tile + 1;
}

/* Rounds of tiles that the busiest multiprocessor works through, times the work in a tile. */
static double estimate(const struct cuda_ops_gemm_config *c, const struct cuda_ops_gemm *p, unsigned multiprocessors)
{
    const uint64_t tiles = tiles_of(p->m, c->rows) * tiles_of(p->n, c->columns) * p->batch_count;

    return (double)tiles_of(tiles, multiprocessors ? multiprocessors : 1) * (double)(c->rows * c->columns) * c->cost;
}

static const struct cuda_ops_gemm_config *choose(const struct cuda_ops_gemm_config *from, const struct cuda_ops_gemm *p,
                                                 unsigned multiprocessors)
{
    const struct cuda_ops_gemm_config *best = &from[0];

    for (unsigned i = 1; i < CUDA_OPS_GEMM_CONFIGS; i++) {
        if (estimate(&from[i], p, multiprocessors) < estimate(best, p, multiprocessors))
            best = &from[i];
    }
    return best;
}

static struct cuda_ops_matrix matrix_of(const struct plan_gemm *g, const struct plan_matrix *m, uint64_t address)
{
    struct cuda_ops_matrix x = {.address = address, .row = (uint64_t)m->row, .column = (uint64_t)m->column};

    for (unsigned d = 0; d < g->batch_rank; d++)
        x.batch[d] = (uint64_t)m->batch[g->batch_rank - 1 - d];
    return x;
}

/* Whether 16-byte pieces along the dimension of stride `unit` lie on 16-byte boundaries, whatever the other indices. */
static bool in_pieces(const struct cuda_ops_gemm *p, const struct cuda_ops_matrix *m, uint64_t unit, uint64_t other,
                      uint64_t other_extent, size_t size)
{
    if (unit != 1 || m->address % CUDA_OPS_PACK_BYTES != 0)
        return false;
    if (other_extent > 1 && other * size % CUDA_OPS_PACK_BYTES != 0)
        return false;
    for (unsigned d = 0; d < p->batch_rank; d++) {
        if (m->batch[d] * size % CUDA_OPS_PACK_BYTES != 0)
            return false;
    }
    return true;
}

/* How a (x = m) or b (x = n) is read; returns whether 16-byte pieces are possible that way. */
static bool choose_access(const struct cuda_ops_gemm *p, const struct cuda_ops_matrix *m, uint64_t stride_x,
                          uint64_t extent_x, uint64_t stride_k, size_t size, uint32_t *ret_access)
{
    if (in_pieces(p, m, stride_k, stride_x, extent_x, size)) {
        *ret_access = CUDA_OPS_ACCESS_ALONG_K;
        return true;
    }
    if (in_pieces(p, m, stride_x, stride_k, p->k, size)) {
        *ret_access = CUDA_OPS_ACCESS_ACROSS_K;
        return true;
    }
    *ret_access = stride_k < stride_x ? CUDA_OPS_ACCESS_ALONG_K : CUDA_OPS_ACCESS_ACROSS_K;
    return false;
}

/* out is contiguous down its columns: computes the transposed product, whose rows are then contiguous. */
static void transpose(struct cuda_ops_gemm *p)
{
    struct cuda_ops_matrix *all[] = {&p->a, &p->b, &p->out, &p->bias};
    const struct cuda_ops_matrix a = p->a;
    const uint64_t m = p->m;

    p->a = p->b;
    p->b = a;
    p->m = p->n;
    p->n = m;
    for (unsigned i = 0; i < 4; i++) {
        const uint64_t row = all[i]->row;

        all[i]->row = all[i]->column;
        all[i]->column = row;
    }
}

void cuda_ops_set_gemm(struct cuda_launch *launch, struct cuda_ops_gemm *p, const struct cuda_ops_gemm_config *config,
                       bool wide)
{
    const char *kernel = wide ? config->wide : config->any;

    p->tiles_m = tiles_of(p->m, config->rows);
    p->tiles_n = tiles_of(p->n, config->columns);
    if (p->bias.address || p->out_wide)
        kernel = wide ? config->linear_wide : config->linear_any;
    cuda_ops_set_launch(launch, kernel, "tiled", p->tiles_m * p->tiles_n * p->batch_count, p, sizeof(*p));
}

void cuda_ops_launch_gemm(const struct plan *plan, const uint64_t *addresses, unsigned multiprocessors,
                          struct cuda_launch *ret_launch)
{
    static const uint32_t activations[] = {[PLAN_NONE] = CUDA_OPS_NONE,
                                           [PLAN_RELU] = CUDA_OPS_RELU,
                                           [PLAN_GELU] = CUDA_OPS_GELU,
                                           [PLAN_GELU_TANH] = CUDA_OPS_GELU_TANH};
    const struct plan_gemm *g = &plan->gemm;
    const size_t size = dtype_size(plan->dtype);
    struct cuda_ops_gemm p = {.m = (uint64_t)g->m, .n = (uint64_t)g->n, .k = (uint64_t)g->k};
    const struct cuda_ops_gemm_config *config;
    bool wide_a, wide_b;

    p.a = matrix_of(g, &g->a, addresses[0]);
    p.b = matrix_of(g, &g->b, addresses[1]);
    p.out = matrix_of(g, &g->out, addresses[plan_gemm_out(g)]);
    if (g->has_bias) {
        p.bias = matrix_of(g, &g->bias, addresses[PLAN_GEMM_BIAS]);
        p.activation = activations[g->activation];
    }
    p.alpha = g->alpha;
    p.beta = g->beta;
    p.out_wide = plan->out_dtype != plan->dtype;
    p.batch_count = g->batch_count;
    p.batch_rank = g->batch_rank;
    for (unsigned d = 0; d < g->batch_rank; d++)
        p.batch_shape[d] = (uint64_t)g->batch_shape[g->batch_rank - 1 - d];
    if (p.out.column != 1 && p.out.row == 1)
        transpose(&p);
    wide_a = choose_access(&p, &p.a, p.a.row, p.m, p.a.column, size, &p.a_access);
    wide_b = choose_access(&p, &p.b, p.b.column, p.n, p.b.row, size, &p.b_access);
    p.out_vector = in_pieces(&p, &p.out, p.out.column, p.out.row, p.m, dtype_size(plan->out_dtype));
    config = choose(cuda_ops_gemm_configs(plan->dtype), &p, multiprocessors);
    cuda_ops_set_gemm(ret_launch, &p, config, wide_a && wide_b);
}

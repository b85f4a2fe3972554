/* Launches of scaled_gemm. Thread: any. */
#include "params_scaled.h"
#include "plan_launch.h"

#include <string.h>

static const struct cuda_ops_gemm_config configs[CUDA_OPS_GEMM_CONFIGS] = {
    {128, 128, 1.0, "kops_scaled_gemm_f8_tiled_large", "kops_scaled_gemm_f8_tiled_large_any", NULL, NULL},
    {64, 64, 1.6, "kops_scaled_gemm_f8_tiled_small", "kops_scaled_gemm_f8_tiled_small_any", NULL, NULL},
};

const char *const *cuda_ops_scaled_variants(enum dtype dtype)
{
    static const char *const all[] = {"tiled", NULL};

    return dtype == DTYPE_F8_E4M3 || dtype == DTYPE_F8_E5M2 ? all : NULL;
}

static uint32_t format_of(enum dtype dtype)
{
    return dtype == DTYPE_F8_E4M3 ? CUDA_OPS_E4M3 : CUDA_OPS_E5M2;
}

static uint32_t out_type_of(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? CUDA_OPS_OUT_BF16 : dtype == DTYPE_F16 ? CUDA_OPS_OUT_F16 : CUDA_OPS_OUT_F32;
}

static struct cuda_ops_matrix turned(struct cuda_ops_matrix x)
{
    const uint64_t row = x.row;

    x.row = x.column;
    x.column = row;
    return x;
}

/* outᵀ = bᵀ · aᵀ, where out's columns are contiguous. */
static void transpose(struct cuda_ops_gemm_scaled *p)
{
    const struct cuda_ops_matrix scale_a = p->scale_a;
    const uint32_t format = p->a_format;

    cuda_ops_transpose(&p->gemm);
    p->scale_a = turned(p->scale_b);
    p->scale_b = turned(scale_a);
    p->a_format = p->b_format;
    p->b_format = format;
}

const struct cuda_ops_gemm_config *cuda_ops_scaled_configs(void)
{
    return configs;
}

void cuda_ops_set_scaled(struct cuda_launch *launch, struct cuda_ops_gemm_scaled *p,
                         const struct cuda_ops_gemm_config *config, bool wide)
{
    p->gemm.tiles_m = cuda_ops_tiles_of(p->gemm.m, config->rows);
    p->gemm.tiles_n = cuda_ops_tiles_of(p->gemm.n, config->columns);
    cuda_ops_set_launch(launch, wide ? config->wide : config->any, "tiled",
                        p->gemm.tiles_m * p->gemm.tiles_n * p->gemm.batch_count, p, sizeof(*p));
}

void cuda_ops_launch_scaled(const struct plan *plan, const uint64_t *addresses, const struct cuda_ops_device *device,
                            struct cuda_launch *ret_launch)
{
    const struct plan_gemm *g = &plan->gemm;
    struct cuda_ops_gemm_scaled p;
    bool wide;

    memset(&p, 0, sizeof(p));
    cuda_ops_read_product(plan, addresses, &p.gemm);
    p.gemm.out_wide = 0;
    p.scale_a = cuda_ops_matrix_of(g, &g->extra[0], addresses[PLAN_GEMM_SCALE_A]);
    p.scale_b = cuda_ops_matrix_of(g, &g->extra[1], addresses[PLAN_GEMM_SCALE_B]);
    p.a_format = format_of(plan->dtype);
    p.b_format = format_of(g->b_dtype);
    p.out_type = out_type_of(plan->out_dtype);
    if (p.gemm.out.column != 1 && p.gemm.out.row == 1)
        transpose(&p);
    wide = cuda_ops_set_access(&p.gemm, dtype_size(plan->dtype), dtype_size(plan->out_dtype));
    cuda_ops_set_scaled(ret_launch, &p, cuda_ops_choose_config(configs, &p.gemm, device->multiprocessors), wide);
}

/* Launches of gemm: the choice of the variant, and the tiled kernels, which can compute every product. Thread: any. */
#include <string.h>

#include "params_scaled.h"
#include "plan_launch.h"

enum {
    SKINNY_ROWS = 16,     /* as in gemm_skinny.cuh */
    SMALL_TILE = 32,      /* as in gemm_small.cuh and gemm_small_mma.cuh */
    SMALL_DEPTH = 128,    /* least steps of k of a block */
    SMALL_STEPS_LOG = 32, /* k is below 2^32, since panels are counted in 32 bits */
    SMALL_MOST = 1 << 22, /* most elements of out of a small product; bounds the number of tiles */
    WARPS = CUDA_OPS_SKINNY_THREADS / 32,
    SPLITS = 4 /* kernels split k by 1, 2, 4 or 8 */
};

uint64_t cuda_ops_tiles_of(uint64_t extent, uint64_t tile)
{
    return (extent - 1) / tile + 1;
}

bool cuda_ops_in_pieces(const struct cuda_ops_gemm *p, const struct cuda_ops_matrix *m, uint64_t unit, uint64_t other,
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

/* Computes the transposed product: outᵀ = bᵀ · aᵀ. */
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

/* Chooses how a (x = m) or b (x = n) is read. Returns whether 16-byte pieces are possible that way. */
static bool choose_access(const struct cuda_ops_gemm *p, const struct cuda_ops_matrix *m, uint64_t stride_x,
                          uint64_t extent_x, uint64_t stride_k, size_t size, uint32_t *ret_access)
{
    if (cuda_ops_in_pieces(p, m, stride_k, stride_x, extent_x, size)) {
        *ret_access = CUDA_OPS_ACCESS_ALONG_K;
        return true;
    }
    if (cuda_ops_in_pieces(p, m, stride_x, stride_k, p->k, size)) {
        *ret_access = CUDA_OPS_ACCESS_ACROSS_K;
        return true;
    }
    *ret_access = stride_k < stride_x ? CUDA_OPS_ACCESS_ALONG_K : CUDA_OPS_ACCESS_ACROSS_K;
    return false;
}

/* Sets how a, b and out are read and written; sizes are those of elements. Returns whether a and b can both be read in
 * 16-byte pieces. */
static bool set_access(struct cuda_ops_gemm *p, size_t size, size_t out_size)
{
    const bool wide_a = choose_access(p, &p->a, p->a.row, p->m, p->a.column, size, &p->a_access);
    const bool wide_b = choose_access(p, &p->b, p->b.column, p->n, p->b.row, size, &p->b_access);

    p->out_vector = cuda_ops_in_pieces(p, &p->out, p->out.column, p->out.row, p->m, out_size);
    return wide_a && wide_b;
}

/* ---- few rows ---- */

#define SKINNY(op, dtype, way, split) "kops_" #op "_" #dtype "_skinny_" #way "_" #split
#define SKINNY_SPLITS(op, dtype, way)                                                                                  \
    {                                                                                                                  \
        SKINNY(op, dtype, way, 1), SKINNY(op, dtype, way, 2), SKINNY(op, dtype, way, 4), SKINNY(op, dtype, way, 8)     \
    }
#define SKINNY_WAYS(dtype, way)                                                                                        \
    {                                                                                                                  \
        SKINNY_SPLITS(gemm, dtype, way), SKINNY_SPLITS(linear, dtype, way)                                             \
    }

/* The kernels of each dtype, for b across and along k: columns of a tile, steps of k that a warp takes at a time,
 * symbols without and with a bias. */
static const struct skinny {
    unsigned columns, steps;
    const char *kernels[2][SPLITS];
} skinnies[ELEMENT_COUNT][2] = {
    [ELEMENT_F32] = {{32, 16, SKINNY_WAYS(f32, across)}, {16, 32, SKINNY_WAYS(f32, along)}},
    [ELEMENT_F16] = {{64, 32, SKINNY_WAYS(f16, across)}, {32, 64, SKINNY_WAYS(f16, along)}},
    [ELEMENT_BF16] = {{64, 32, SKINNY_WAYS(bf16, across)}, {32, 64, SKINNY_WAYS(bf16, along)}},
};

static int refuse(const char *variant, const char *why, struct error *e)
{
    error_set(e, ERROR_INVALID_ARGUMENT, "the variant \"%s\" cannot do this product: %s", variant, why);
    return error_detail_text(e, "variant", variant);
}

/* Returns log2 of the parts of the sum over k: at most as many blocks as run at a time, and `shares` parts. */
static unsigned choose_split(const struct cuda_ops_device *device, uint64_t tiles, uint64_t shares)
{
    unsigned split = 0;

    if (device->level < CUDA_OPS_SM90)
        return 0;
    while (split + 1 < SPLITS && (tiles << (split + 1)) <= device->multiprocessors && ((uint64_t)2 << split) <= shares)
        split++;
    return split;
}

static void set_split(struct cuda_launch *launch, const char *kernel, const char *variant, uint64_t tiles,
                      unsigned split, const struct cuda_ops_gemm *p)
{
    const uint64_t most = CUDA_OPS_MAX_GRID >> split;

    cuda_ops_set_launch(launch, kernel, variant, (tiles < most ? tiles : most) << split, p, sizeof(*p));
}

static int launch_skinny(struct cuda_ops_gemm *p, const struct plan *plan, const struct cuda_ops_device *device,
                         struct cuda_launch *ret_launch, struct error *e)
{
    const size_t size = dtype_size(plan->dtype);
    const struct skinny *s;
    uint64_t tiles;
    unsigned split;
    bool along;

    if (p->m > SKINNY_ROWS && p->n <= SKINNY_ROWS)
        transpose(p);
    if (p->m > SKINNY_ROWS)
        return refuse("skinny", "out has more than 16 rows and more than 16 columns", e);
    along = cuda_ops_in_pieces(p, &p->b, p->b.row, p->b.column, p->n, size);
    if (!along && !cuda_ops_in_pieces(p, &p->b, p->b.column, p->b.row, p->k, size))
        return refuse("skinny",
                      "rows (or columns) of the larger operand do not lie on 16-byte boundaries, each without gaps", e);
    p->a_access = cuda_ops_in_pieces(p, &p->a, p->a.column, p->a.row, p->m, size) ? CUDA_OPS_ACCESS_ALONG_K
                                                                                  : CUDA_OPS_ACCESS_ACROSS_K;
    p->b_access = along ? CUDA_OPS_ACCESS_ALONG_K : CUDA_OPS_ACCESS_ACROSS_K;
    s = &skinnies[cuda_ops_element(plan->dtype)][along];
    p->tiles_m = 1;
    p->tiles_n = cuda_ops_tiles_of(p->n, s->columns);
    tiles = p->tiles_n * p->batch_count;
    if (p->tiles_n > INT32_MAX || tiles > INT32_MAX)
        return refuse("skinny", "it has more than 2^31 tiles", e);
    split = choose_split(device, tiles, p->k / (WARPS * s->steps));
    set_split(ret_launch, s->kernels[p->bias.address != 0][split], "skinny", tiles, split, p);
    ret_launch->block[0] = CUDA_OPS_SKINNY_THREADS;
    return 0;
}

/* ---- small matrices ---- */

#define SMALL_SPLITS(dtype, suffix)                                                                                    \
    {                                                                                                                  \
        "kops_gemm_" #dtype "_small_1" suffix, "kops_gemm_" #dtype "_small_2" suffix,                                  \
            "kops_gemm_" #dtype "_small_4" suffix, "kops_gemm_" #dtype "_small_8" suffix                               \
    }

static int launch_small(struct cuda_ops_gemm *p, const struct plan *plan, const struct cuda_ops_device *device,
                        struct cuda_launch *ret_launch, struct error *e)
{
    static const char *const kernels[2][2][SPLITS] = {{SMALL_SPLITS(f32, "_any"), SMALL_SPLITS(f32, "")},
                                                      {SMALL_SPLITS(tf32, "_any"), SMALL_SPLITS(tf32, "")}};
    const bool tf32 = !plan->gemm.high_precision_only && device->level >= CUDA_OPS_SM80;
    const bool wide = set_access(p, sizeof(float), sizeof(float));
    uint64_t tiles;
    unsigned split;

    if (p->m > SMALL_MOST || p->n > SMALL_MOST || p->m * p->n > SMALL_MOST || p->m * p->n * p->batch_count > SMALL_MOST)
        return refuse("small", "out has more than 4194304 elements", e);
    if (p->k >> SMALL_STEPS_LOG)
        return refuse("small", "it adds up 2^32 terms or more", e);
    p->tiles_m = cuda_ops_tiles_of(p->m, SMALL_TILE);
    p->tiles_n = cuda_ops_tiles_of(p->n, SMALL_TILE);
    tiles = p->tiles_m * p->tiles_n * p->batch_count;
    split = choose_split(device, tiles, cuda_ops_tiles_of(p->k ? p->k : 1, SMALL_DEPTH));
    set_split(ret_launch, kernels[tf32][wide][split], "small", tiles, split, p);
    if (tf32)
        ret_launch->block[0] = CUDA_OPS_SMALL_MMA_THREADS;
    return 0;
}

/* ---- tiles, and the choice ---- */

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

/* Estimates the time: tiles of the busiest multiprocessor, times the cost of a tile. */
static double estimate(const struct cuda_ops_gemm_config *c, const struct cuda_ops_gemm *p, unsigned multiprocessors)
{
    const uint64_t tiles = cuda_ops_tiles_of(p->m, c->rows) * cuda_ops_tiles_of(p->n, c->columns) * p->batch_count;

    return (double)cuda_ops_tiles_of(tiles, multiprocessors ? multiprocessors : 1) * (double)(c->rows * c->columns) *
           c->cost;
}

static const struct cuda_ops_gemm_config *choose_config(const struct cuda_ops_gemm_config *from,
                                                        const struct cuda_ops_gemm *p, unsigned multiprocessors)
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

void cuda_ops_set_gemm(struct cuda_launch *launch, struct cuda_ops_gemm *p, const struct cuda_ops_gemm_config *config,
                       bool wide)
{
    const char *kernel = wide ? config->wide : config->any;

    p->tiles_m = cuda_ops_tiles_of(p->m, config->rows);
    p->tiles_n = cuda_ops_tiles_of(p->n, config->columns);
    if (p->bias.address || p->out_wide)
        kernel = wide ? config->linear_wide : config->linear_any;
    cuda_ops_set_launch(launch, kernel, "tiled", p->tiles_m * p->tiles_n * p->batch_count, p, sizeof(*p));
}

static void read_product(const struct plan *plan, const uint64_t *addresses, struct cuda_ops_gemm *p)
{
    static const uint32_t activations[] = {[PLAN_NONE] = CUDA_OPS_NONE,
                                           [PLAN_RELU] = CUDA_OPS_RELU,
                                           [PLAN_GELU] = CUDA_OPS_GELU,
                                           [PLAN_GELU_TANH] = CUDA_OPS_GELU_TANH};
    const struct plan_gemm *g = &plan->gemm;

    *p = (struct cuda_ops_gemm){.m = (uint64_t)g->m, .n = (uint64_t)g->n, .k = (uint64_t)g->k};
    p->a = matrix_of(g, &g->a, addresses[0]);
    p->b = matrix_of(g, &g->b, addresses[1]);
    p->out = matrix_of(g, &g->out, addresses[plan_gemm_out(g)]);
    if (g->has_bias) {
        p->bias = matrix_of(g, &g->bias, addresses[PLAN_GEMM_BIAS]);
        p->activation = activations[g->activation];
    }
    p->out_wide = plan->out_dtype != plan->dtype;
    p->alpha = g->alpha;
    p->beta = g->beta;
    p->batch_count = g->batch_count;
    p->batch_rank = g->batch_rank;
    for (unsigned d = 0; d < g->batch_rank; d++)
        p->batch_shape[d] = (uint64_t)g->batch_shape[g->batch_rank - 1 - d];
}

static int launch_tiled(struct cuda_ops_gemm *p, const struct plan *plan, const struct cuda_ops_device *device,
                        struct cuda_launch *ret_launch, struct error *e)
{
    const size_t size = dtype_size(plan->dtype);
    const bool wide = set_access(p, size, p->out_wide ? sizeof(float) : size);

    (void)e;
    cuda_ops_set_gemm(ret_launch, p, choose_config(cuda_ops_gemm_configs(plan->dtype), p, device->multiprocessors),
                      wide);
    return 0;
}

/* ---- variants ---- */

static const struct variant {
    const char *name;
    bool has_bias;
    int (*launch)(struct cuda_ops_gemm *p, const struct plan *plan, const struct cuda_ops_device *device,
                  struct cuda_launch *ret_launch, struct error *e);
} variants[] = {
    {"tiled", true, launch_tiled},
    {"skinny", true, launch_skinny},
    {"small", false, launch_small},
    {"hopper", true, cuda_ops_launch_hopper},
};

const char *const *cuda_ops_gemm_variants(bool with_bias, enum dtype dtype, enum cuda_ops_level level)
{
    static const char *const all[] = {"tiled", NULL}, *const f32[] = {"tiled", "skinny", "small", NULL},
                             *const f32_bias[] = {"tiled", "skinny", NULL}, *const half[] = {"tiled", "skinny", NULL},
                             *const half_hopper[] = {"tiled", "skinny", "hopper", NULL};

    switch (cuda_ops_element(dtype)) {
    case ELEMENT_F32:
        return with_bias ? f32_bias : f32;
    case ELEMENT_F16:
    case ELEMENT_BF16:
        return level >= CUDA_OPS_SM90A ? half_hopper : level >= CUDA_OPS_SM80 ? half : all;
    case ELEMENT_F64:
    case ELEMENT_COUNT:
        break;
    }
    return all;
}

static int launch_variant(const char *name, const struct plan *plan, const uint64_t *addresses,
                          const struct cuda_ops_device *device, struct cuda_launch *ret_launch, struct error *e)
{
    struct cuda_ops_gemm p;

    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        if (strcmp(variants[i].name, name) != 0)
            continue;
        if ((plan->gemm.has_bias && !variants[i].has_bias) ||
            (plan->out_dtype != plan->dtype && variants[i].launch != launch_tiled)) {
            error_set(e, ERROR_INVALID_ARGUMENT, "variant \"%s\" has no %s; leave it out", name,
                      plan->out_dtype != plan->dtype ? "out of another dtype" : "bias, and no activation");
            return error_detail_text(e, "key", "attrs.variant");
        }
        read_product(plan, addresses, &p);
        if (p.out.column != 1 && p.out.row == 1)
            transpose(&p); /* makes out's rows contiguous */
        return variants[i].launch(&p, plan, device, ret_launch, e);
    }
    return error_set(e, ERROR_INVALID_ARGUMENT, "gemm has no variant \"%.40s\"", name);
}

/* Whether the variant is likely to be faster than the tiled kernels (measured in kernels/cuda/lab). */
static bool is_likely(const char *variant, const struct plan_gemm *g)
{
    const int64_t less = g->m < g->n ? g->m : g->n, more = g->m < g->n ? g->n : g->m;

    if (strcmp(variant, "skinny") == 0)
        return less <= 16 && more >= 64 && g->k >= 64;
    if (strcmp(variant, "small") == 0)
        return less >= 32 && g->k >= 32 && g->k <= 1024 && (uint64_t)g->m * (uint64_t)g->n * g->batch_count <= 1 << 17;
    return strcmp(variant, "hopper") == 0 && less >= 64 && g->k >= 64;
}

int cuda_ops_launch_gemm(const struct plan *plan, const uint64_t *addresses, const char *variant,
                         const struct cuda_ops_device *device, struct cuda_launch *ret_launch, struct error *e)
{
    const char *const *names = cuda_ops_gemm_variants(plan->gemm.has_bias, plan->dtype, device->level);
    struct error ignored;

    if (variant)
        return launch_variant(variant, plan, addresses, device, ret_launch, e);
    for (unsigned i = 1; names[i] && plan->out_dtype == plan->dtype; i++)
        if (is_likely(names[i], &plan->gemm) &&
            launch_variant(names[i], plan, addresses, device, ret_launch, &ignored) == 0)
            return 0;
    return launch_variant("tiled", plan, addresses, device, ret_launch, e);
}

/* ---- scaled_gemm ---- */

static const struct cuda_ops_gemm_config scaled_configs[CUDA_OPS_GEMM_CONFIGS] = {
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

/* Computes the transposed product, outᵀ = bᵀ · aᵀ, for an out with contiguous columns. */
static void transpose_scaled(struct cuda_ops_gemm_scaled *p)
{
    const struct cuda_ops_matrix scale_a = p->scale_a;
    const uint32_t format = p->a_format;

    transpose(&p->gemm);
    p->scale_a = turned(p->scale_b);
    p->scale_b = turned(scale_a);
    p->a_format = p->b_format;
    p->b_format = format;
}

const struct cuda_ops_gemm_config *cuda_ops_scaled_configs(void)
{
    return scaled_configs;
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
    read_product(plan, addresses, &p.gemm);
    p.gemm.out_wide = 0;
    p.scale_a = matrix_of(g, &g->extra[0], addresses[PLAN_GEMM_SCALE_A]);
    p.scale_b = matrix_of(g, &g->extra[1], addresses[PLAN_GEMM_SCALE_B]);
    p.a_format = format_of(plan->dtype);
    p.b_format = format_of(g->b_dtype);
    p.out_type = out_type_of(plan->out_dtype);
    if (p.gemm.out.column != 1 && p.gemm.out.row == 1)
        transpose_scaled(&p);
    wide = set_access(&p.gemm, dtype_size(plan->dtype), dtype_size(plan->out_dtype));
    cuda_ops_set_scaled(ret_launch, &p, choose_config(scaled_configs, &p.gemm, device->multiprocessors), wide);
}

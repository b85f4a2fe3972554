/* Launches of gemm for few rows, and for small matrices: how many blocks share the sum over k. Thread: any. */
#include "plan_launch.h"

enum {
    SKINNY_ROWS = 16,     /* as in gemm_skinny.cuh */
    SMALL_TILE = 32,      /* as in gemm_small.cuh and gemm_small_mma.cuh */
    SMALL_DEPTH = 128,    /* steps of k that are enough for a block */
    SMALL_STEPS_LOG = 32, /* k is below 2^32: panels are counted in 32 bits */
    SMALL_MOST = 1 << 22, /* elements of out: more is no small product, and tiles would be without number */
    WARPS = CUDA_OPS_SKINNY_THREADS / 32,
    SPLITS = 4 /* by 1, 2, 4, 8 */
};

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

/* Of each dtype, where b lies across and along k: columns of a tile, and steps of k that a warp takes at a time;
 * kernels without and with a bias. */
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

/* The number of the power of two by which the sum over k is divided: as many blocks as multiprocessors work on at a
 * time, as long as each of `shares` has something to do. */
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

int cuda_ops_launch_skinny(struct cuda_ops_gemm *p, const struct plan *plan, const struct cuda_ops_device *device,
                           struct cuda_launch *ret_launch, struct error *e)
{
    const size_t size = dtype_size(plan->dtype);
    const struct skinny *s;
    uint64_t tiles;
    unsigned split;
    bool along;

    if (p->m > SKINNY_ROWS && p->n <= SKINNY_ROWS)
        cuda_ops_transpose(p);
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

int cuda_ops_launch_small(struct cuda_ops_gemm *p, const struct plan *plan, const struct cuda_ops_device *device,
                          struct cuda_launch *ret_launch, struct error *e)
{
    static const char *const kernels[2][2][SPLITS] = {{SMALL_SPLITS(f32, "_any"), SMALL_SPLITS(f32, "")},
                                                      {SMALL_SPLITS(tf32, "_any"), SMALL_SPLITS(tf32, "")}};
    const bool tf32 = !plan->gemm.high_precision_only && device->level >= CUDA_OPS_SM80;
    const bool wide = cuda_ops_set_access(p, sizeof(float), sizeof(float));
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

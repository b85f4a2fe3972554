/* Launches of gemm on sm_90a: checks what tensor maps can describe, and chooses the tile. Thread: any. */
#include "plan_launch.h"

#include <stddef.h>

enum {
    MAP_F16 = 6, /* CU_TENSOR_MAP_DATA_TYPE_FLOAT16 */
    MAP_BF16 = 9,
    INTERLEAVE_NONE = 0, /* CU_TENSOR_MAP_INTERLEAVE_NONE */
    SWIZZLE_128B = 3,
    PROMOTION_256B = 3,
    FILL_ZERO = 0,
    SIZE = 2,        /* bytes of an element */
    MAP_STRIDE = 16, /* strides of maps are multiples of so many bytes */
    TILE_GROUP = 8   /* rows of clusters' tiles that run together */
};

#define WAYS(op, dtype, tile)                                                                                          \
    {                                                                                                                  \
        {"kops_" #op "_" #dtype "_hopper_" #tile "_kk", "kops_" #op "_" #dtype "_hopper_" #tile "_kx"},                \
        {                                                                                                              \
            "kops_" #op "_" #dtype "_hopper_" #tile "_xk", "kops_" #op "_" #dtype "_hopper_" #tile "_xx"               \
        }                                                                                                              \
    }
#define KERNELS(tile)                                                                                                  \
    {                                                                                                                  \
        {WAYS(gemm, f16, tile), WAYS(gemm, bf16, tile)},                                                               \
        {                                                                                                              \
            WAYS(linear, f16, tile), WAYS(linear, bf16, tile)                                                          \
        }                                                                                                              \
    }

/* Kernels of gemm_hopper.cu: tile of a block, stages, cluster; a multiprocessor's time for an element of out, relative
 * to the first row; symbols without and with a bias, of f16 and bf16, by whether a and b lie across. */
static const struct config {
    unsigned rows, columns, stages, cluster_m, cluster_n;
    double cost;
    const char *kernels[2][2][2][2];
} configs[] = {
    {128, 256, 4, 2, 1, 1.0, KERNELS(128x256)},
    {128, 128, 6, 2, 1, 1.12, KERNELS(128x128)},
};

static int refuse(const char *why, struct error *e)
{
    error_set(e, ERROR_INVALID_ARGUMENT, "the variant \"hopper\" cannot do this product: %s", why);
    return error_detail_text(e, "variant", "hopper");
}

/* ---- the choice of a tile ---- */

static uint64_t works_of(const struct config *c, const struct cuda_ops_gemm *p)
{
    return cuda_ops_tiles_of(p->m, (uint64_t)c->rows * c->cluster_m) *
           cuda_ops_tiles_of(p->n, (uint64_t)c->columns * c->cluster_n) * p->batch_count;
}

/* Counts the clusters that run at a time. */
static unsigned clusters_of(const struct config *c, unsigned multiprocessors)
{
    const unsigned clusters = multiprocessors / (c->cluster_m * c->cluster_n);

    return clusters ? clusters : 1;
}

static double estimate(const struct config *c, const struct cuda_ops_gemm *p, unsigned multiprocessors)
{
    return (double)cuda_ops_tiles_of(works_of(c, p), clusters_of(c, multiprocessors)) * (double)(c->rows * c->columns) *
           c->cost;
}

static const struct config *choose(const struct cuda_ops_gemm *p, unsigned multiprocessors)
{
    const struct config *best = &configs[0];

    for (size_t i = 1; i < sizeof(configs) / sizeof(configs[0]); i++)
        if (estimate(&configs[i], p, multiprocessors) < estimate(best, p, multiprocessors))
            best = &configs[i];
    return best;
}

/* ---- maps ---- */

/* A matrix in a map's terms: `outer` rows of `inner` contiguous elements, `lead` elements apart. */
struct sheet {
    uint64_t inner, outer, lead;
};

/* Fills the map; dimensions of size 1 get a valid stride. */
static void set_map(struct cuda_launch_map *map, const struct cuda_ops_matrix *m, struct sheet s, uint64_t batches,
                    unsigned rows)
{
    const uint64_t lead = s.outer > 1 ? s.lead * SIZE : (s.inner * SIZE + MAP_STRIDE - 1) / MAP_STRIDE * MAP_STRIDE;
    const uint64_t batch = batches > 1 ? m->batch[0] * SIZE : lead;

    map->map = (struct plan_map){.address = m->address,
                                 .extents = {s.inner, s.outer, batches},
                                 .strides = {lead, batch},
                                 .box = {CUDA_OPS_MAPPED_PIECE, (uint16_t)rows, 1},
                                 .steps = {1, 1, 1},
                                 .rank = 3,
                                 .interleave = INTERLEAVE_NONE,
                                 .swizzle = SWIZZLE_128B,
                                 .promotion = PROMOTION_256B,
                                 .fill = FILL_ZERO};
}

/* Strides must not be 0, nor have more than 40 bits. cuda_ops_in_pieces() checks for multiples of 16 bytes. */
static bool strides_fit(const struct cuda_ops_matrix *m, uint64_t lead, uint64_t outer)
{
    const uint64_t most = (UINT64_C(1) << 40) / SIZE;

    return (outer <= 1 || (lead > 0 && lead < most)) && m->batch[0] < most;
}

/* Whether a map can describe an operand of x (m of a, n of b) and k. *ret_across: it does not lie along k. */
static bool lies_well(const struct cuda_ops_gemm *p, const struct cuda_ops_matrix *m, uint64_t stride_x, uint64_t x,
                      uint64_t stride_k, bool *ret_across)
{
    *ret_across = false;
    if (cuda_ops_in_pieces(p, m, stride_k, stride_x, x, SIZE) && strides_fit(m, stride_x, x))
        return true;
    *ret_across = true;
    return cuda_ops_in_pieces(p, m, stride_x, stride_k, p->k, SIZE) && strides_fit(m, stride_k, p->k);
}

static int check(const struct cuda_ops_gemm *p, bool *ret_a_across, bool *ret_b_across, struct error *e)
{
    const uint64_t most = INT32_MAX;

    if (p->m > most || p->n > most || p->k > most || p->batch_count > most)
        return refuse("an extent is 2^31 or more", e);
    if (p->k == 0)
        return refuse("the sum has no terms", e);
    if (p->n < 8)
        return refuse("rows of out (or columns, where it lies so) have fewer than 8 elements", e);
    if (p->batch_rank > 1)
        return refuse("its batches are not one after the other in equal steps", e);
    if (!cuda_ops_in_pieces(p, &p->out, p->out.column, p->out.row, p->m, SIZE) ||
        !strides_fit(&p->out, p->out.row, p->m) || (p->batch_count > 1 && p->out.batch[0] == 0))
        return refuse("out's rows, or columns, do not lie on 16-byte boundaries, each without gaps", e);
    if (!lies_well(p, &p->a, p->a.row, p->m, p->a.column, ret_a_across) ||
        !lies_well(p, &p->b, p->b.column, p->n, p->b.row, ret_b_across))
        return refuse("an operand's rows, or columns, do not lie on 16-byte boundaries, each without gaps", e);
    return 0;
}

/* ---- the launch ---- */

static void set_operand(struct cuda_launch_map *map, const struct cuda_ops_gemm *p, const struct cuda_ops_matrix *m,
                        uint64_t x, uint64_t stride_x, uint64_t stride_k, bool across, unsigned share)
{
    const struct sheet along_k = {p->k, x, stride_x}, along_x = {x, p->k, stride_k};
    const uint64_t batches = m->batch[0] ? p->batch_count : 1;

    set_map(map, m, across ? along_x : along_k, batches, across ? CUDA_OPS_MAPPED_PIECE : share);
}

/* Whether two elements of the bias, from an even column on, can be read together. */
static bool is_in_pairs(const struct cuda_ops_gemm *p)
{
    return p->bias.address % (2 * SIZE) == 0 && p->bias.row == 0 && p->bias.column == 1 && p->bias.batch[0] % 2 == 0;
}

static void set_launch(const struct config *c, const struct cuda_ops_gemm *p, bool bf16, bool a_across, bool b_across,
                       unsigned multiprocessors, struct cuda_launch *launch)
{
    const unsigned cluster = c->cluster_m * c->cluster_n, clusters = clusters_of(c, multiprocessors);
    const uint64_t works = works_of(c, p);
    const struct cuda_ops_gemm_mapped mapped = {
        .out_address = p->out.address,
        .out_row = p->out.row,
        .out_batch = p->out.batch[0],
        .m = (uint32_t)p->m,
        .n = (uint32_t)p->n,
        .k = (uint32_t)p->k,
        .batch_count = (uint32_t)p->batch_count,
        .alpha = (float)p->alpha,
        .beta = (float)p->beta,
        .a_batch = p->a.batch[0] != 0,
        .b_batch = p->b.batch[0] != 0,
        .tiles_m = (uint32_t)cuda_ops_tiles_of(p->m, (uint64_t)c->rows * c->cluster_m),
        .tiles_n = (uint32_t)cuda_ops_tiles_of(p->n, (uint64_t)c->columns * c->cluster_n),
        .group = TILE_GROUP,
        .activation = p->activation,
        .bias_address = p->bias.address,
        .bias_row = p->bias.row,
        .bias_column = p->bias.column,
        .bias_batch = p->bias.batch[0],
        .bias_pairs = is_in_pairs(p),
    };
    const struct sheet out = {p->n / 8 * 8, p->m, p->out.row};
    static const size_t places[] = {offsetof(struct cuda_ops_gemm_mapped, a), offsetof(struct cuda_ops_gemm_mapped, b),
                                    offsetof(struct cuda_ops_gemm_mapped, out)};

    cuda_ops_set_launch(launch, c->kernels[p->bias.address != 0][bf16][a_across][b_across], "hopper",
                        (works < clusters ? works : clusters) * cluster, &mapped, sizeof(mapped));
    launch->block[0] = CUDA_OPS_MAPPED_THREADS;
    launch->shared_bytes = c->stages * (c->rows + c->columns) * CUDA_OPS_MAPPED_DEPTH * SIZE + CUDA_OPS_MAPPED_SHARED;
    set_operand(&launch->maps[0], p, &p->a, p->m, p->a.row, p->a.column, a_across, c->rows / c->cluster_n);
    set_operand(&launch->maps[1], p, &p->b, p->n, p->b.column, p->b.row, b_across, c->columns / c->cluster_m);
    set_map(&launch->maps[2], &p->out, out, p->batch_count, CUDA_OPS_MAPPED_PIECE);
    launch->n_maps = 3;
    for (unsigned i = 0; i < launch->n_maps; i++) {
        launch->maps[i].map.type = bf16 ? MAP_BF16 : MAP_F16;
        launch->maps[i].at = places[i];
    }
}

int cuda_ops_launch_hopper(struct cuda_ops_gemm *p, const struct plan *plan, const struct cuda_ops_device *device,
                           struct cuda_launch *ret_launch, struct error *e)
{
    bool a_across, b_across;
    const struct config *c;

    if (check(p, &a_across, &b_across, e) < 0)
        return -1;
    c = choose(p, device->multiprocessors);
    if (works_of(c, p) > INT32_MAX)
        return refuse("it has more than 2^31 tiles", e);
    set_launch(c, p, plan->dtype == DTYPE_BF16, a_across, b_across, device->multiprocessors, ret_launch);
    return 0;
}

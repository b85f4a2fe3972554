/* Shared by the files of the launcher, and by the lab. */
#ifndef KOPS_CUDA_OPS_PLAN_LAUNCH_H
#define KOPS_CUDA_OPS_PLAN_LAUNCH_H

#include "launch.h"
#include "params.h"

enum {
    CUDA_OPS_PACK_BYTES = 16,       /* of one vector access */
    CUDA_OPS_MAX_GRID = 0x7fffffff, /* blocks along x */
};

/* A dtype's place in the tables of gemm. */
enum cuda_ops_element { ELEMENT_F32, ELEMENT_F64, ELEMENT_F16, ELEMENT_BF16, ELEMENT_COUNT };
enum cuda_ops_element cuda_ops_element(enum dtype dtype);

/* A one-dimensional launch of `tiles` tiles, one a block (kernels loop where there are more than a grid can have). */
void cuda_ops_set_launch(struct cuda_launch *launch, const char *kernel, const char *variant, uint64_t tiles,
                         const void *params, size_t size);

/* n / divisor = (high N bits of n · magic + n) >> shift, for n < 2^(N − 1); N is 32 unless `wide`, then 64. */
struct cuda_ops_divider cuda_ops_divider(uint64_t divisor, bool wide);

/* A gemm kernel's tile of out, and how long a multiprocessor works for an element of it, relative to the largest tile
 * (a smaller one reads more of a and b for each; measured in kernels/cuda/lab). */
struct cuda_ops_gemm_config {
    uint64_t rows, columns;
    double cost;
    const char *wide, *any;               /* for operands that can be read in 16-byte pieces, and for all */
    const char *linear_wide, *linear_any; /* the same with a bias, or where out is wider than the operands */
};

/* The CUDA_OPS_GEMM_CONFIGS kernels of a dtype, largest tile first. */
enum { CUDA_OPS_GEMM_CONFIGS = 2 };
const struct cuda_ops_gemm_config *cuda_ops_gemm_configs(enum dtype dtype);

/* Launches `p` (tiles are set here) with the config's kernel; `wide` only where both operands allow it. */
void cuda_ops_set_gemm(struct cuda_launch *launch, struct cuda_ops_gemm *p, const struct cuda_ops_gemm_config *config,
                       bool wide);

bool cuda_ops_has_elementwise(enum op_id op, enum dtype dtype);
/* `variant` is NULL or one of cuda_ops_variants(). */
int cuda_ops_launch_elementwise(enum op_id op, const struct plan *plan, const uint64_t *addresses, const char *variant,
                                const struct cuda_ops_device *device, struct cuda_launch *ret_launch, struct error *e);
int cuda_ops_launch_gemm(const struct plan *plan, const uint64_t *addresses, const char *variant,
                         const struct cuda_ops_device *device, struct cuda_launch *ret_launch, struct error *e);

/* A plan with scales. The names are those of its variants; NULL: there are none for the dtype. */
const char *const *cuda_ops_scaled_variants(enum dtype dtype);
const struct cuda_ops_gemm_config *cuda_ops_scaled_configs(void);
/* As cuda_ops_set_gemm(). */
struct cuda_ops_gemm_scaled;
void cuda_ops_set_scaled(struct cuda_launch *launch, struct cuda_ops_gemm_scaled *p,
                         const struct cuda_ops_gemm_config *config, bool wide);
void cuda_ops_launch_scaled(const struct plan *plan, const uint64_t *addresses, const struct cuda_ops_device *device,
                            struct cuda_launch *ret_launch);

/* ---- gemm ---- */

const char *const *cuda_ops_gemm_variants(bool with_bias, enum dtype dtype, enum cuda_ops_level level);

uint64_t cuda_ops_tiles_of(uint64_t extent, uint64_t tile);

/* Whether 16-byte pieces along the dimension of stride `unit` lie on 16-byte boundaries, whatever the other indices. */
bool cuda_ops_in_pieces(const struct cuda_ops_gemm *p, const struct cuda_ops_matrix *m, uint64_t unit, uint64_t other,
                        uint64_t other_extent, size_t size);

/* Launches the variant "hopper" for the product that `p` says, whose tiles and ways to read are set here. Error:
 * invalid_argument, where the variant cannot do it. */
int cuda_ops_launch_hopper(struct cuda_ops_gemm *p, const struct plan *plan, const struct cuda_ops_device *device,
                           struct cuda_launch *ret_launch, struct error *e);

#endif

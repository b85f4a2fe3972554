/* Declarations shared by the files of the launchers, and by the lab. */
#ifndef KOPS_CUDA_OPS_PLAN_LAUNCH_H
#define KOPS_CUDA_OPS_PLAN_LAUNCH_H

#include "launch.h"
#include "params.h"

enum {
    CUDA_OPS_PACK_BYTES = 16,       /* bytes of a vector access */
    CUDA_OPS_MAX_GRID = 0x7fffffff, /* blocks along x */
};

/* A dtype's index in the tables of gemm. */
enum cuda_ops_element { ELEMENT_F32, ELEMENT_F64, ELEMENT_F16, ELEMENT_BF16, ELEMENT_COUNT };
enum cuda_ops_element cuda_ops_element(enum dtype dtype);

/* Makes a one-dimensional launch with a block per tile. Kernels loop if a grid cannot have so many blocks. */
void cuda_ops_set_launch(struct cuda_launch *launch, const char *kernel, const char *variant, uint64_t tiles,
                         const void *params, size_t size);

/* n / divisor = (high N bits of n · magic + n) >> shift, for n < 2^(N − 1); N is 64 if `wide`, else 32. */
struct cuda_ops_divider cuda_ops_divider(uint64_t divisor, bool wide);

/* A gemm kernel's tile of out. `cost`: a multiprocessor's time for an element, relative to the largest tile; smaller
 * tiles read more of a and b for each element (measured in kernels/cuda/lab). */
struct cuda_ops_gemm_config {
    uint64_t rows, columns;
    double cost;
    const char *wide, *any;               /* kernels for operands in 16-byte pieces, and for all operands */
    const char *linear_wide, *linear_any; /* kernels with a bias, or with an out wider than the operands */
};

/* Returns a dtype's kernels, largest tile first. */
enum { CUDA_OPS_GEMM_CONFIGS = 2 };
const struct cuda_ops_gemm_config *cuda_ops_gemm_configs(enum dtype dtype);

/* Makes a launch of `p` with the config's kernel, and sets its tiles. `wide`: both operands allow 16-byte pieces. */
void cuda_ops_set_gemm(struct cuda_launch *launch, struct cuda_ops_gemm *p, const struct cuda_ops_gemm_config *config,
                       bool wide);

bool cuda_ops_has_elementwise(enum op_id op, enum dtype dtype);
/* `variant` is NULL or one of cuda_ops_variants(). */
int cuda_ops_launch_elementwise(enum op_id op, const struct plan *plan, const uint64_t *addresses, const char *variant,
                                const struct cuda_ops_device *device, struct cuda_launch *ret_launch, struct error *e);
int cuda_ops_launch_gemm(const struct plan *plan, const uint64_t *addresses, const char *variant,
                         const struct cuda_ops_device *device, struct cuda_launch *ret_launch, struct error *e);

/* Launchers of plans with scales. cuda_ops_scaled_variants() returns NULL for dtypes without variants. */
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

/* Whether 16-byte pieces along the dimension with stride `unit` are aligned for all values of the other indices. */
bool cuda_ops_in_pieces(const struct cuda_ops_gemm *p, const struct cuda_ops_matrix *m, uint64_t unit, uint64_t other,
                        uint64_t other_extent, size_t size);

/* Makes a launch of the variant "hopper" for the product `p`, and sets its tiles and accesses. Error: invalid_argument,
 * the variant cannot compute it. */
int cuda_ops_launch_hopper(struct cuda_ops_gemm *p, const struct plan *plan, const struct cuda_ops_device *device,
                           struct cuda_launch *ret_launch, struct error *e);

#endif

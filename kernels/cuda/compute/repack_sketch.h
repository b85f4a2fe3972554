/* A gemm as more than one launch: what is copied where, what is multiplied, and what is done to the product. Pure
 * functions.
 *
 * "padded": operands whose rows, extents or first elements do not lie on 16-byte boundaries are copied to rows that do,
 * with zeros around. The fast kernels of tensor cores need that. A bias is copied, too, where the product has zeros
 * behind its columns.
 *
 * "bf16x3", "bf16x6": each f32 is split into 2 or 3 numbers of bf16, its pieces (ops/params.h), of which piece p counts
 * 2^(-7p). The products of pieces p of a and q of b with p + q < the number of pieces are added up in f32; the products
 * left out are smaller than what was rounded away. a's pieces lie behind each other along k, and b's in the opposite
 * order: all products with p + q = s are so one product with s + 1 times the k. The smallest come first. The products
 * of the first pieces are made of a few steps along k, each of which is added in f32 to out: tensor cores add with
 * fewer bits than f32 has, and cut them off.
 *
 * An infinite or NaN element is in its last piece, the others are 0: there it meets the other operand's first pieces
 * alone, which are 0 only where the element is 0 (or below 2^-134), so that no infinity is multiplied by a 0 that f32
 * would not have. Only an infinity times an infinity becomes NaN instead.
 *
 * "activated" copies nothing: the library's product with the bias, and gelu over it in place, for which the library has
 * no epilogue. Products of f32 and f64 lose nothing by it: what is stored between both is of the type of the sums. */
#ifndef KOPS_CUDA_REPACK_SKETCH_H
#define KOPS_CUDA_REPACK_SKETCH_H

#include "ops/launch.h"
#include "ops/params.h"

extern const char repack_padded[], repack_bf16x3[], repack_bf16x6[], repack_activated[];

enum repack_action_kind { REPACK_COPY, REPACK_PRODUCT, REPACK_GELU };

/* Addresses of copies count from the beginning of the scratch memory, which lies on a 256-byte boundary. */
struct repack_action {
    enum repack_action_kind kind;
    union {
        struct {
            enum cuda_ops_repack_kind kind;
            bool from_scratch[CUDA_OPS_REPACK_PARTS], to_scratch[CUDA_OPS_REPACK_PARTS];
            struct cuda_ops_repack params;
        } copy;
        struct {
            struct plan plan;
            uint64_t addresses[PLAN_MAX_OPERANDS];
            bool in_scratch[PLAN_MAX_OPERANDS];
        } product;
        struct {
            struct plan_elementwise all;
            enum dtype dtype;
            uint64_t address;
        } gelu;
    };
};

struct repack_sketch {
    const char *variant;
    uint64_t scratch_bytes;
    unsigned n;
    struct repack_action *actions;
};

/* Names of the op's variants for a dtype, NULL-terminated. */
const char *const *repack_variants(enum op_id op, enum dtype dtype);

/* invalid_argument when the variant cannot serve the plan, wherever its operands lie. */
int repack_check(const struct plan *plan, const char *variant, struct error *e);

/* Whether "activated" serves the plan, and the plan is large enough for it. */
bool repack_should_activate(const struct plan *plan);

/* Whether "bf16x6" has at most twice the error of f32. It has that of f32 that is added up in order; but products of
 * fewer than 1024 steps along k are for kernels that add up in parts, which is more exact. */
bool repack_is_as_exact(const struct plan *plan);

/* The variant that is estimated to be faster than the plan as it is, or NULL. */
const char *repack_estimate(const struct plan *plan, const uint64_t *addresses);

/* Errors: invalid_argument (the variant does not apply), out_of_memory. */
int repack_sketch(const struct plan *plan, const uint64_t *addresses, const char *variant, uint64_t scratch_max,
                  struct repack_sketch *ret_sketch, struct error *e);
void repack_sketch_free(struct repack_sketch *s);

/* ---- one panel of a gemm: which operands are copied, and where the copies lie ---- */

struct repack_mode {
    const char *name;
    unsigned pieces; /* 0: bits are copied */
    enum cuda_ops_repack_kind kind;
};

/* An operand: x is m of a, and n of b. */
struct repack_side {
    const struct plan_matrix *source;
    int64_t x, x_stride, k_stride;
    bool along_k; /* its rows, and its copy's, lie along k */
    bool is_copied;
    /* The copy: `rows` of `columns`, a piece; `ld` from row to row; `matrix` elements of all pieces of one matrix. */
    uint64_t offset;
    int64_t rows, columns, ld, matrix;
};

struct repack_panel {
    const struct plan *plan;
    const struct repack_mode *mode;
    struct plan_gemm g;
    uint64_t addresses[PLAN_MAX_OPERANDS];
    struct repack_side a, b;
    bool out_is_copied, out_is_wide; /* wide: its rows lie along n */
    bool bias_is_copied;
    int64_t m, n, k;            /* of the product, with zeros; k of one piece */
    int64_t out_ld, out_matrix; /* of out's copy */
    uint64_t out_offset, bias_offset, bytes;
};

/* Extents of a panel: of the outermost batch dimension, of m and of n. */
struct repack_extents {
    int64_t batch, m, n;
};

static inline int64_t repack_round_up(int64_t x, int64_t step)
{
    return (x + step - 1) / step * step;
}

static inline size_t repack_out_size(const struct plan *plan)
{
    return dtype_size(plan->out_dtype);
}

/* Of an element that is multiplied. */
static inline size_t repack_in_size(const struct repack_panel *p)
{
    return p->mode->pieces ? 2 : dtype_size(p->plan->dtype);
}

/* The plan's outermost batch dimension. */
static inline int64_t repack_batch(const struct plan *plan)
{
    return plan->gemm.batch_rank ? plan->gemm.batch_shape[0] : 1;
}

/* The mode of a variant that copies. */
const struct repack_mode *repack_mode(const char *variant);

/* The panel at that place, of that size, or what is left of it. */
struct repack_panel repack_lay_out(const struct plan *plan, const struct repack_mode *mode, const uint64_t *addresses,
                                   struct repack_extents at, struct repack_extents size);

#endif

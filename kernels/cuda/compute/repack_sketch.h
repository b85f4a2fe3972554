/* A gemm as a list of launches: copies, products, an activation. Pure functions.
 *
 * "padded": operands whose rows, extents or first elements do not lie on 16-byte boundaries are copied to aligned rows,
 * padded with zeros, as the fast kernels of tensor cores need. A bias is copied, too, where the product's columns are
 * padded.
 *
 * "bf16x3", "bf16x6": each f32 is split into 2 or 3 numbers of bf16, its pieces (ops/params.h); piece p is scaled by
 * 2^(-7p). Products of pieces p of a and q of b with p + q < the number of pieces are added up in f32; the others are
 * smaller than the rounding. a's pieces lie behind each other along k, b's in the opposite order. So all products with
 * p + q = s are one product with s + 1 times the k. The smallest are added first. The product of the first pieces is
 * split along k into chunks, each of which is added to out in f32, since tensor cores add with fewer bits than f32
 * and truncate.
 *
 * An infinite or NaN element is in its last piece; its other pieces are 0. The last piece is multiplied with first
 * pieces alone, which are 0 only where the element is 0 (or below 2^-134). So infinity meets no 0 that f32 would not
 * have. Only infinity times infinity becomes NaN.
 *
 * "activated" copies nothing: the library multiplies and adds the bias, then a kernel applies gelu in place, for which
 * the library has no epilogue. f32 and f64 lose no precision, since out has the type of the sums. */
#ifndef KOPS_CUDA_REPACK_SKETCH_H
#define KOPS_CUDA_REPACK_SKETCH_H

#include "ops/launch.h"
#include "ops/params.h"

extern const char repack_padded[], repack_bf16x3[], repack_bf16x6[], repack_activated[];

enum repack_action_kind { REPACK_COPY, REPACK_PRODUCT, REPACK_GELU };

/* Addresses of copies are offsets in the scratch memory, which begins on a 256-byte boundary. */
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

/* Lists the op's variants for a dtype, NULL-terminated. */
const char *const *repack_variants(enum op_id op, enum dtype dtype);

/* Error: invalid_argument, the variant cannot serve the plan, whatever the operands' addresses. */
int repack_check(const struct plan *plan, const char *variant, struct error *e);

/* Whether "activated" serves the plan, and the plan is large enough for it. */
bool repack_should_activate(const struct plan *plan);

/* Whether "bf16x6" has at most twice the error of f32. Its error is that of an f32 sum in order. Products of fewer than
 * 1024 steps along k run on kernels that add up in parts, which is more exact. */
bool repack_is_as_exact(const struct plan *plan);

/* Returns the variant with the estimate of less time than the plan as it is, or NULL. */
const char *repack_estimate(const struct plan *plan, const uint64_t *addresses);

/* Errors: invalid_argument (the variant does not apply), out_of_memory. */
int repack_sketch(const struct plan *plan, const uint64_t *addresses, const char *variant, uint64_t scratch_max,
                  struct repack_sketch *ret_sketch, struct error *e);
void repack_sketch_free(struct repack_sketch *s);

/* ---- one panel of a gemm: which operands are copied, and where the copies lie ---- */

struct repack_mode {
    const char *name;
    unsigned pieces; /* 0: elements are copied, not split */
    enum cuda_ops_repack_kind kind;
};

/* An operand: x is m of a, and n of b. */
struct repack_side {
    const struct plan_matrix *source;
    int64_t x, x_stride, k_stride;
    bool along_k; /* rows of the operand and of its copy lie along k */
    bool is_copied;
    /* The copy. A piece has `rows` × `columns`, with the stride `ld`; all pieces of a matrix have `matrix` elements. */
    uint64_t offset;
    int64_t rows, columns, ld, matrix;
};

struct repack_panel {
    const struct plan *plan;
    const struct repack_mode *mode;
    struct plan_gemm g;
    uint64_t addresses[PLAN_MAX_OPERANDS];
    struct repack_side a, b;
    bool out_is_copied, out_is_wide; /* wide: rows of out lie along n */
    bool bias_is_copied;
    int64_t m, n, k;            /* the product's extents with padding; k: of one piece */
    int64_t out_ld, out_matrix; /* out's copy: stride of rows, elements of a matrix */
    uint64_t out_offset, bias_offset, bytes;
};

/* A panel's position or size, along the outermost batch dimension, m and n. */
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

/* Returns bytes of an element as it is multiplied. */
static inline size_t repack_in_size(const struct repack_panel *p)
{
    return p->mode->pieces ? 2 : dtype_size(p->plan->dtype);
}

/* Returns the size of the plan's outermost batch dimension. */
static inline int64_t repack_batch(const struct plan *plan)
{
    return plan->gemm.batch_rank ? plan->gemm.batch_shape[0] : 1;
}

const struct repack_mode *repack_mode(const char *variant);

#endif

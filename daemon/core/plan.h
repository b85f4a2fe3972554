/* One execution of a kernel in normal form: every shape rule has been applied, so that a backend sees only iteration
 * spaces and strides. Strides count elements. */
#ifndef KOPS_CORE_PLAN_H
#define KOPS_CORE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/tensor.h"
#include "proto/generated/kernels.h"
#include "proto/generated/op_ids.h"

enum { PLAN_MAX_OPERANDS = OP_MAX_INPUTS + OP_MAX_OUTPUTS };

/* Of one step: a user kernel has more than any op. */
enum { STEP_MAX_OPERANDS = KERNELS_TENSORS_MAX, KERNEL_PARAM_BYTES = 768 };

enum plan_kind { PLAN_ELEMENTWISE, PLAN_GEMM, PLAN_KERNEL };

/* One pass over out's index space. Inputs are already broadcast (stride 0). Dimensions of size 1 are gone,
 * neighbours that are contiguous in every operand are merged, and dimensions are ordered so that out's strides
 * do not grow from the outermost to the innermost: a fully contiguous request has rank 1 and strides 1 (rank 0 becomes
 * rank 1 of size 1). A dimension of size 0 gives rank 1, shape 0. */
struct plan_elementwise {
    unsigned rank; /* ≥ 1 */
    int64_t shape[TENSOR_MAX_RANK];
    int64_t strides[PLAN_MAX_OPERANDS][TENSOR_MAX_RANK]; /* inputs, then outputs */
    uint64_t count;
    bool contiguous; /* rank 1 and every stride 1 */
};

struct plan_matrix {
    /* Strides of the matrix *after* trans_a / trans_b were applied; all 0 where the operand has no elements (k is 0).
     */
    int64_t row, column;
    int64_t batch[TENSOR_MAX_RANK];
};

/* What a product goes through before it is written. */
enum plan_activation { PLAN_NONE, PLAN_RELU, PLAN_GELU, PLAN_GELU_TANH };

/* out[b, i, j] = activation(alpha · Σ_k a[b, i, k] · b[b, k, j] + beta · out[b, i, j] + bias[b, i, j]), for every batch
 * index. Any of m, n, k and the batch count may be 0. beta = 0: out is not read. With a bias, an operand between b and
 * out, beta is 0; without one there is no activation.
 *
 * With scales, two operands of f32 between b and out, it is (Σ_k a[b, i, k] · b[b, k, j]) · scale_a[b, i, j] ·
 * scale_b[b, i, j]: there is no bias, alpha is 1 and beta 0, and a's and b's elements are f8 of either kind. */
struct plan_gemm {
    int64_t m, n, k;
    unsigned batch_rank; /* merged where all operands allow it; 0: one matrix */
    int64_t batch_shape[TENSOR_MAX_RANK];
    uint64_t batch_count;
    struct plan_matrix a, b, out;
    double alpha, beta;
    bool high_precision_only; /* precision = "highest" or "high": no tf32 */
    bool in_pieces;           /* precision = "high" or "medium": products of f32's pieces do, see proto/ops/gemm.json */
    bool has_bias, has_scales;
    enum plan_activation activation;
    bool all_in_f32;    /* with scales and precision = "highest": no sums of the 8-bit tensor cores */
    bool fast_sums;     /* with scales and precision = "medium": all sums may be theirs */
    enum dtype b_dtype; /* with scales: b's own */
    /* Operands between b and out, as many as there are; others are not set. Broadcast: stride 0 where they repeat. The
     * last member. */
    union {
        struct plan_matrix bias;
        struct plan_matrix extra[2]; /* the bias, or scale_a and scale_b */
    };
};

/* Behind b come a bias, if there is one, or two scales, if there are. */
enum plan_gemm_operand {
    PLAN_GEMM_A,
    PLAN_GEMM_B,
    PLAN_GEMM_BIAS,
    PLAN_GEMM_SCALE_A = PLAN_GEMM_BIAS,
    PLAN_GEMM_SCALE_B
};

static inline unsigned plan_gemm_extras(const struct plan_gemm *p)
{
    return p->has_scales ? 2 : p->has_bias ? 1 : 0;
}

/* The number of the operand that is written. */
static inline unsigned plan_gemm_out(const struct plan_gemm *p)
{
    return 2 + plan_gemm_extras(p);
}

/* The operand of that number. */
static inline const struct plan_matrix *plan_gemm_matrix(const struct plan_gemm *p, unsigned operand)
{
    if (operand == plan_gemm_out(p))
        return &p->out;
    return operand == PLAN_GEMM_A ? &p->a : operand == PLAN_GEMM_B ? &p->b : &p->extra[operand - PLAN_GEMM_BIAS];
}

/* A tensor as a tensor map (CUtensorMap) describes it: what cuTensorMapEncodeTiled() is given, dimensions from the
 * innermost, enumerations by CUDA's numbers. It lies where the encoded map is to be, so that an operand's address goes
 * where a pointer's would: an encoded map holds the address, so each set of addresses is encoded anew. */
enum { PLAN_MAP_BYTES = 128, PLAN_MAP_RANK = 5 };
struct plan_map {
    uint64_t address; /* the first member */
    uint64_t extents[PLAN_MAP_RANK];
    uint64_t strides[PLAN_MAP_RANK - 1]; /* bytes, not of the innermost */
    uint16_t box[PLAN_MAP_RANK];
    uint8_t steps[PLAN_MAP_RANK];
    uint8_t rank, type, interleave, swizzle, promotion, fill;
};
_Static_assert(sizeof(struct plan_map) <= PLAN_MAP_BYTES, "a description has room where its map will be");

/* A launch of a user kernel. */
struct plan_kernel {
    uint64_t function; /* which one: a number of the backend's own */
    unsigned grid[3];  /* any 0: nothing is to be done */
    unsigned block[3];
    unsigned cluster[3];   /* 0: none */
    unsigned shared_bytes; /* dynamic */
    uint16_t param_bytes;
    uint16_t n_pointers;                  /* as many as operands */
    uint16_t pointers[STEP_MAX_OPERANDS]; /* where in params the i-th operand's address belongs */
    uint16_t sparse; /* operands with other bytes between their elements, a bit each: those are not the kernel's */
    uint16_t inout;  /* operands that it reads and writes, a bit each */
    uint16_t maps;   /* operands that are tensor maps, a bit each: a struct plan_map lies at their places in params */
    uint8_t cooperative; /* 1: all blocks run at one time */
    uint8_t pdl;         /* 1: it may begin before the user's kernel right before it in the job has ended */
    /* Parameters whose offsets, a uint16_t each, are the last of `params`, and counted in param_bytes; 0: none. With
     * tensor maps: a device aligns those from where its parameters begin, so that only the driver knows what a buffer
     * of all looks like. It gets each parameter by itself. */
    uint16_t n_listed;
    _Alignas(8) unsigned char params[KERNEL_PARAM_BYTES]; /* addresses are 0 */
};

struct plan {
    enum plan_kind kind;
    enum dtype dtype;     /* of the first input, and of those that have none of their own */
    enum dtype out_dtype; /* of the outputs */
    union {
        struct plan_elementwise elementwise;
        struct plan_gemm gemm;
        struct plan_kernel kernel;
    };
};

/* The dtype of operand number `operand`, of which `n_inputs` are inputs. */
static inline enum dtype plan_dtype(const struct plan *p, unsigned n_inputs, unsigned operand)
{
    if (operand >= n_inputs)
        return p->out_dtype;
    if (p->kind != PLAN_GEMM || !p->gemm.has_scales || operand == PLAN_GEMM_A)
        return p->dtype;
    return operand == PLAN_GEMM_B ? p->gemm.b_dtype : DTYPE_F32;
}

/* True when nothing is to be written. */
static inline bool plan_is_empty(const struct plan *p)
{
    if (p->kind == PLAN_ELEMENTWISE)
        return p->elementwise.count == 0;
    if (p->kind == PLAN_KERNEL)
        return p->kernel.grid[0] == 0 || p->kernel.grid[1] == 0 || p->kernel.grid[2] == 0;
    return p->gemm.m == 0 || p->gemm.n == 0 || p->gemm.batch_count == 0;
}

#endif

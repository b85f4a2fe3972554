/* A plan: one execution of a kernel in normal form. Every shape rule has been applied, so a backend sees only iteration
 * spaces and strides. Strides count elements. */
#ifndef KOPS_CORE_PLAN_H
#define KOPS_CORE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/tensor.h"
#include "proto/generated/kernels.h"
#include "proto/generated/op_ids.h"

enum { PLAN_MAX_OPERANDS = OP_MAX_INPUTS + OP_MAX_OUTPUTS };

/* Operands of a step: a user's kernel has more than any op. */
enum { STEP_MAX_OPERANDS = KERNELS_TENSORS_MAX, KERNEL_PARAM_BYTES = 768 };

enum plan_kind { PLAN_ELEMENTWISE, PLAN_GEMM, PLAN_KERNEL };

/* A pass over out's index space. Inputs are already broadcast (stride 0). Dimensions of size 1 are removed, neighbours
 * that are contiguous in every operand are merged, and dimensions are ordered so that out's strides do not grow from
 * the outermost to the innermost: a fully contiguous request has rank 1 and strides 1 (rank 0 becomes rank 1 of size
 * 1). A dimension of size 0 gives rank 1, shape 0. */
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

/* Function applied to a product before it is written. */
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
    bool in_pieces; /* precision = "high" or "medium": products of f32's pieces are enough, see proto/ops/gemm.json */
    bool has_bias, has_scales;
    enum plan_activation activation;
    bool all_in_f32;    /* with scales and precision = "highest": not the sums of the 8-bit tensor cores */
    bool fast_sums;     /* with scales and precision = "medium": all sums may be the 8-bit tensor cores' */
    enum dtype b_dtype; /* set with scales only */
    /* Operands between b and out, as many as there are; others are not set. Broadcast: stride 0 where they repeat. Must
     * be the last member. */
    union {
        struct plan_matrix bias;
        struct plan_matrix extra[2]; /* the bias, or scale_a and scale_b */
    };
};

/* Operands by number. After b comes a bias or two scales, if there are any. */
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

/* Returns the number of the operand that is written. */
static inline unsigned plan_gemm_out(const struct plan_gemm *p)
{
    return 2 + plan_gemm_extras(p);
}

/* Returns the operand of that number. */
static inline const struct plan_matrix *plan_gemm_matrix(const struct plan_gemm *p, unsigned operand)
{
    if (operand == plan_gemm_out(p))
        return &p->out;
    return operand == PLAN_GEMM_A ? &p->a : operand == PLAN_GEMM_B ? &p->b : &p->extra[operand - PLAN_GEMM_BIAS];
}

/* A tensor as a tensor map (CUtensorMap) describes it: the arguments of cuTensorMapEncodeTiled(), dimensions from the
 * innermost, enumerations by CUDA's numbers. It lies at the place of the encoded map, so that an operand's address goes
 * where a pointer's would. An encoded map contains the address, so each set of addresses is encoded anew. */
enum { PLAN_MAP_BYTES = 128, PLAN_MAP_RANK = 5 };
struct plan_map {
    uint64_t address; /* must be the first member */
    uint64_t extents[PLAN_MAP_RANK];
    uint64_t strides[PLAN_MAP_RANK - 1]; /* bytes; the innermost dimension has none */
    uint16_t box[PLAN_MAP_RANK];
    uint8_t steps[PLAN_MAP_RANK];
    uint8_t rank, type, interleave, swizzle, promotion, fill;
};
_Static_assert(sizeof(struct plan_map) <= PLAN_MAP_BYTES, "a description has room where its map will be");

/* A launch of a user kernel. */
struct plan_kernel {
    uint64_t function; /* the backend's number of the function */
    unsigned grid[3];  /* any 0: there is nothing to do */
    unsigned block[3];
    unsigned cluster[3];   /* 0: none */
    unsigned shared_bytes; /* dynamic */
    uint16_t param_bytes;
    uint16_t n_pointers;                  /* as many as operands */
    uint16_t pointers[STEP_MAX_OPERANDS]; /* place of the i-th operand's address in params */
    /* Operands with foreign bytes between their elements, a bit each: the kernel must keep these bytes. */
    uint16_t sparse;
    uint16_t inout; /* operands that the kernel reads and writes, a bit each */
    uint16_t maps;  /* operands that are tensor maps, a bit each: a struct plan_map lies at their places in params */
    uint8_t cooperative; /* 1: all blocks run at one time */
    uint8_t pdl;         /* 1: the kernel may begin before the user's kernel right before it in the job has ended */
    /* Parameters that are passed one by one; 0: none. Their offsets, a uint16_t each, are the last of `params`, and
     * counted in param_bytes. Kernels with tensor maps need it: a device aligns maps from where its parameters begin,
     * so only the driver knows the layout of all. */
    uint16_t n_listed;
    _Alignas(8) unsigned char params[KERNEL_PARAM_BYTES]; /* addresses are 0 */
};

struct plan {
    enum plan_kind kind;
    enum dtype dtype; /* dtype of the first input, and of inputs without one of their own */
    enum dtype out_dtype;
    union {
        struct plan_elementwise elementwise;
        struct plan_gemm gemm;
        struct plan_kernel kernel;
    };
};

/* Returns the dtype of operand number `operand`; the first `n_inputs` operands are inputs. */
static inline enum dtype plan_dtype(const struct plan *p, unsigned n_inputs, unsigned operand)
{
    if (operand >= n_inputs)
        return p->out_dtype;
    if (p->kind != PLAN_GEMM || !p->gemm.has_scales || operand == PLAN_GEMM_A)
        return p->dtype;
    return operand == PLAN_GEMM_B ? p->gemm.b_dtype : DTYPE_F32;
}

/* True when there is nothing to write. */
static inline bool plan_is_empty(const struct plan *p)
{
    if (p->kind == PLAN_ELEMENTWISE)
        return p->elementwise.count == 0;
    if (p->kind == PLAN_KERNEL)
        return p->kernel.grid[0] == 0 || p->kernel.grid[1] == 0 || p->kernel.grid[2] == 0;
    return p->gemm.m == 0 || p->gemm.n == 0 || p->gemm.batch_count == 0;
}

#endif

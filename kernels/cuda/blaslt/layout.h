/* A gemm in cuBLASLt's terms: column-major matrices with leading dimensions. Pure functions. */
#ifndef KOPS_CUDA_BLASLT_LAYOUT_H
#define KOPS_CUDA_BLASLT_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/plan.h"
#include "util/error.h"

/* Batches that no single stride describes take several calls of one launch each: up to CALLS_FEW always, up to
 * CALLS_MAX where each call has so many operations that its launch costs little. */
enum { BLASLT_CALLS_FEW = 16, BLASLT_CALLS_MAX = 256, BLASLT_CALL_OPERATIONS = 1 << 28 };

enum blaslt_operand { BLASLT_A, BLASLT_B, BLASLT_D, BLASLT_OPERANDS };

/* Scales of A and B: one number each, or one number for each row of D and each column of D. */
enum blaslt_scales { BLASLT_NO_SCALES, BLASLT_SCALE_NUMBERS, BLASLT_SCALE_VECTORS };

/* A problem: everything that the choice of an algorithm depends on. Compared as bytes, so every byte is set. D is
 * column-major m × n, op(A) is m × k, op(B) is k × n. */
struct blaslt_problem {
    int64_t m, n, k;
    int64_t ld[BLASLT_OPERANDS];
    int64_t batch_count;
    int64_t batch_stride[BLASLT_OPERANDS];
    uint32_t alignment[BLASLT_OPERANDS]; /* bytes, a power of two ≤ 256, of every matrix of the batch */
    uint8_t dtype, b_dtype, out_dtype;   /* dtypes of A, B and D */
    uint8_t tf32;
    uint8_t transpose_a, transpose_b;
    uint8_t has_bias;
    uint8_t activation;  /* enum plan_activation */
    uint8_t scales;      /* enum blaslt_scales */
    uint8_t fast_sums;   /* precision = "medium" of f8 */
    uint8_t reserved[2]; /* 0; the compiler pads nothing */
};
_Static_assert(sizeof(struct blaslt_problem) == 10 * sizeof(int64_t) + 3 * sizeof(uint32_t) + 12, "no padding");

/* The key of a cached plan, compared as bytes. */
struct blaslt_cached {
    struct blaslt_problem problem;
    uint64_t choice; /* a hash of the choice; 0: the library's own */
};

struct blaslt_layout {
    struct blaslt_problem problem;
    unsigned
        source[BLASLT_OPERANDS]; /* the plan's operand that A, B and D are: enum plan_gemm_operand, plan_gemm_out() */
    unsigned n_calls;
    unsigned n_outer; /* batch dimensions that become calls */
    uint64_t outer_shape[TENSOR_MAX_RANK];
    int64_t outer_bytes[TENSOR_MAX_RANK][BLASLT_OPERANDS]; /* strides of these dimensions */
    bool any_epilogue; /* true: accept any bias and activation, also those that the library lacks */
};

/* Error: invalid_argument, cuBLASLt cannot express the plan. `addresses` may be NULL, for the check alone. */
int blaslt_layout(const struct plan *plan, const uint64_t *addresses, struct blaslt_layout *ret_layout,
                  struct error *e);

/* Bytes from the operand's first element to the first one of call number `call`. */
uint64_t blaslt_call_offset(const struct blaslt_layout *l, unsigned call, enum blaslt_operand operand);

#endif

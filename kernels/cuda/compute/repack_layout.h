/* One panel of a gemm: which operands are copied, and where the copies lie. Pure. */
#ifndef KOPS_CUDA_REPACK_LAYOUT_H
#define KOPS_CUDA_REPACK_LAYOUT_H

#include "ops/launch.h"

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

/* The panel at that place, of that size, or what is left of it. */
struct repack_panel repack_lay_out(const struct plan *plan, const struct repack_mode *mode, const uint64_t *addresses,
                                   struct repack_extents at, struct repack_extents size);

#endif

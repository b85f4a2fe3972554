/* A kernel of kernels/cuda/ops, as the stand-in knows it: from its name (kernel_names.c), for what it touches
 * (kernel_uses.c) and for what it computes (kernels.c). */
#ifndef STANDIN_KERNEL_H
#define STANDIN_KERNEL_H

#include "kernels/cuda/ops/params_scaled.h"
#include "standin.h"

enum kernel_op {
    KERNEL_ADD,
    KERNEL_ADD_SQUARE,
    KERNEL_SQUARE,
    KERNEL_SUB_SQUARE,
    KERNEL_COPY,
    KERNEL_GELU,
    KERNEL_GEMM
};
enum kernel_layout {
    LAYOUT_VECTOR,
    LAYOUT_STRIDED,
    LAYOUT_GEMM,
    LAYOUT_MAPPED,
    LAYOUT_SCALED,
    LAYOUT_GATE,
    LAYOUT_MOVE,
    LAYOUT_REPACK
};

struct kernel {
    struct kernel *next;
    enum kernel_op op;
    unsigned inputs;
    enum kernel_layout layout;
    enum element element;
    unsigned size;   /* of an element */
    unsigned pieces; /* of LAYOUT_REPACK; 0: a copy */
    bool plain;      /* of LAYOUT_VECTOR: operands begin on 16-byte boundaries and have steps of 1 */
    char symbol[96];
};

/* The elements of a gemm's out, which may be wider than those of its operands. */
struct kernel kernel_of_out(const struct kernel *k, const struct cuda_ops_gemm *p);

#endif

/* The inner loops. kernels_loops.c is compiled once for each instruction set, and the table is chosen at run time. Pure
 * functions on memory that the caller has checked. Strides count elements. Thread: any. */
#ifndef KOPS_HOST_KERNELS_H
#define KOPS_HOST_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/tensor.h"
#include "cpu.h"
#include "proto/generated/op_ids.h"

/* out[i] = op(a[i], b[i]) over contiguous arrays; unary ops ignore b. `out` may be exactly `a` or `b`. `bypass`: stores
 * go past the caches, for results that do not fit into them. */
typedef void kernel_elementwise(void *out, const void *a, const void *b, size_t n, bool bypass);

/* into[r·columns + c] = from[r·row + c·column], converted to the dtype in which gemm computes. */
typedef void kernel_load(void *into, const void *from, size_t rows, size_t columns, ptrdiff_t row, ptrdiff_t column);

/* out[r·row + c·column] = alpha·sums[r·columns + c] + beta·out[…], rounded once. beta = 0: out is not read. */
typedef void kernel_store(void *out, ptrdiff_t row, ptrdiff_t column, const void *sums, size_t rows, size_t columns,
                          double alpha, double beta);

/* out += a·b, contiguous matrices: m × n, m × k and k × n. */
typedef void kernel_multiply(void *out, const void *a, const void *b, size_t m, size_t n, size_t k);

struct kernels {
    const char *name;
    kernel_elementwise *elementwise[OP_COUNT][DTYPE_SLOTS];
    kernel_load *load[DTYPE_SLOTS];         /* f32, f64, f16, bf16 and f8 */
    kernel_store *store[DTYPE_SLOTS];       /* f32, f64, f16, bf16 */
    kernel_multiply *multiply[DTYPE_SLOTS]; /* f32, f64 */
};

extern const struct kernels kernels_generic, kernels_avx2, kernels_avx512;

/* Converters of f8 to f32, by a table that all builds share. */
kernel_load kernels_load_e4m3, kernels_load_e5m2;

/* Returns NULL for an instruction set without a build for this target, or that the processor lacks. */
const struct kernels *kernels_get(enum cpu_isa isa);
/* Returns the table of that name; NULL: kernels_get() has none. */
const struct kernels *kernels_named(const char *name);
const struct kernels *kernels_best(void);

/* Returns the dtype in which gemm computes. */
static inline enum dtype kernels_compute_dtype(enum dtype dtype)
{
    return dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
}

#endif

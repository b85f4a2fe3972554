/* The inner loops, as built for one instruction set. One source (kernels_*.inc.h) is compiled once per set; which
 * table is used is decided at run time. Pure functions on memory that the caller has checked. Strides count
 * elements. Thread: any. */
#ifndef KOPS_HOST_KERNELS_H
#define KOPS_HOST_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "cpu.h"
#include "proto/generated/op_ids.h"

#define X(NAME, name, value, size) +1
enum { KERNEL_DTYPES = 1 KOPS_DTYPES(X) }; /* an array indexed by dtype */
#undef X

/* out[i] = op(a[i], b[i]) over contiguous arrays; an op of one input does not look at b. `out` may be exactly `a`
 * or `b`. `bypass`: stores go past the caches, for results that do not fit them. */
typedef void kernel_elementwise(void *out, const void *a, const void *b, size_t n, bool bypass);

/* into[r·ld + c] = from[r·row + c·column], converted to the type that gemm computes in: f64 for f64, else f32. */
typedef void kernel_load(void *into, size_t ld, const void *from, size_t rows, size_t columns, ptrdiff_t row,
                         ptrdiff_t column);

/* out[r·row + c·column] = alpha·acc[r·ld + c] + beta·out[…], rounded once. beta = 0: out is not read. */
typedef void kernel_store(void *out, ptrdiff_t row, ptrdiff_t column, const void *acc, size_t ld, size_t rows,
                          size_t columns, double alpha, double beta);

/* acc[i][j] = Σ_p A[i][p]·B[p][j] for the rows of the kernel and nr columns: a tile of the product. A[i][p] lies at
 * a + i·row + p·step, B[p] at b + p·b_step, in bytes. They count units: one element, or a pair of bf16 that follow each
 * other along k. */
typedef void kernel_micro(size_t k, const void *a, ptrdiff_t row, ptrdiff_t step, const void *b, ptrdiff_t b_step,
                          void *acc);

enum { MICRO_HEIGHTS = 3 };

struct kernels_gemm {
    unsigned mr, nr;   /* rows of the highest tile, columns */
    unsigned mr_step;  /* micro[h] computes (h + 1)·mr_step rows, the last one mr */
    unsigned pair;     /* elements of a unit along k */
    unsigned run;      /* k is a multiple of it, in units */
    kernel_load *load; /* packs units; NULL: the element's own */
    /* Packs A, for kernels that read units along k as they follow each other (step is a unit's size): into[r·ld + p] is
     * unit p of row r. NULL: by `load`, as into[p·ld + r]. */
    kernel_load *load_rows;
    void (*begin)(void), (*end)(void); /* around a thread's calls of the kernels below. NULL: nothing to do */
    kernel_micro *micro[MICRO_HEIGHTS];
};

struct kernels {
    const char *name;
    kernel_elementwise *elementwise[OP_COUNT][KERNEL_DTYPES];
    kernel_load *load[KERNEL_DTYPES];
    kernel_store *store[KERNEL_DTYPES];
    struct kernels_gemm gemm[KERNEL_DTYPES]; /* by the type that is computed in: f32, f64 */
};

extern const struct kernels kernels_generic, kernels_avx2, kernels_avx512;

/* gemm of bf16 by the processor's own products of bf16 pairs, of vectors or of matrices. NULL: not built for this
 * target, or the processor lacks them. They take subnormal numbers for zero. */
const struct kernels_gemm *kernels_gemm_bf16(void);
const struct kernels_gemm *kernels_gemm_amx(void);
extern const struct kernels_gemm kernels_gemm_avx512bf16, kernels_gemm_amxbf16;

/* NULL: not built for this target, or the processor lacks it. */
const struct kernels *kernels_get(enum cpu_isa isa);
/* The best one. */
const struct kernels *kernels_best(void);

/* The type that gemm computes in. */
static inline enum dtype kernels_compute_dtype(enum dtype dtype)
{
    return dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
}

#endif

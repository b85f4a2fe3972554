/* The kernels' parameters: each kernel takes one of these structs by value, and the struct alone defines its result. C
 * and CUDA C++ include this header; all members have fixed sizes and the same layout in both.
 *
 * Kernel symbols (extern "C", one parameter):
 *
 *     kops_<op>_<dtype>_vector            struct cuda_ops_vector    op: add, square; dtype: f32, f64, f16, bf16
 *     kops_<op>_<dtype>_strided…          struct cuda_ops_strided   the suffix never changes the result
 *     kops_copy_<bytes>_vector            struct cuda_ops_vector    bytes: 1, 2, 4, 8; out = a, bits unchanged
 *     kops_copy_<bytes>_strided…          struct cuda_ops_strided
 *     kops_gemm_<dtype>_tiled_<config>    struct cuda_ops_gemm      the suffix never changes the result
 *     kops_gemm_<dtype>_skinny_<config>   struct cuda_ops_gemm      m ≤ 16; b lies along k or across, see below
 *     kops_gemm_f32_small_<config>        struct cuda_ops_gemm
 *     kops_gemm_<dtype>_hopper_<config>   struct cuda_ops_gemm_mapped
 *     kops_gate                           struct cuda_ops_gate      one thread
 *
 * A config's last number, of skinny and small, is how many blocks share the sum over k.
 *
 * Every kernel loops over its work: any grid of whole clusters gives the same result with the block size of the launch.
 * Addresses are device addresses of first elements; strides count elements. f16 and bf16 are computed in f32 and
 * rounded once, to nearest even. */
#ifndef KOPS_CUDA_OPS_PARAMS_H
#define KOPS_CUDA_OPS_PARAMS_H

#include <stdint.h>

enum { CUDA_OPS_MAX_RANK = 8 };

enum { CUDA_OPS_SKINNY_THREADS = 512 /* of every block of the skinny kernels */ };

/* Shapes of the elementwise kernels, chosen by measurement (kernels/cuda/lab). */
enum {
    CUDA_OPS_THREADS = 256,        /* of every block */
    CUDA_OPS_VECTOR_PACKS = 1,     /* 16-byte packs of out that a thread takes of a tile */
    CUDA_OPS_STRIDED_ELEMENTS = 4, /* elements of out that a thread takes of a tile */
};

/* Where the kernel writes its times; all zero: nowhere. The first member of every struct of parameters. */
struct cuda_ops_stamps {
    uint64_t times;    /* of two u64: when the kernel began and when it ended, in ns of the GPU's clock */
    uint64_t count;    /* of a u32 that is 0 before the kernel and after it; of no other kernel that runs meanwhile */
    uint32_t counting; /* blocks that count themselves when they end, the last of the grid; from 1 to all */
    uint32_t reserved;
};

enum {
    CUDA_OPS_COUNTING_MAX = 4096, /* blocks that count: more than run at one time on any GPU; others end before */
    CUDA_OPS_COUNTS = 1024,       /* words for that in kops_stamp_counts, which stamp.cu defines */
    CUDA_OPS_COUNT_BYTES = 32     /* from one to the next */
};

/* Ends when the u64 at `go` is at least `value`, or after `most_ns`. */
struct cuda_ops_gate {
    struct cuda_ops_stamps stamps;
    uint64_t go; /* in the host's memory */
    uint64_t value, most_ns;
};

/* For i in [0, count): out[i] = op(a[i·a_step], b[i·b_step]); square and copy have no b (b = 0, b_step = 0). Steps are
 * 0 or 1. `out` may be exactly `a` or exactly `b`. */
struct cuda_ops_vector {
    struct cuda_ops_stamps stamps;
    uint64_t out, a, b;
    uint64_t count;
    uint32_t a_step, b_step;
    /* For speed alone: elements before the first 16-byte boundary of out, and whether a and b lie on such a boundary
     * there too (so that they are read in 16-byte pieces). */
    uint32_t head;
    uint32_t a_aligned, b_aligned;
    uint32_t reserved;
};

/* Division by `divisor` of n < 2^31 (strided) or n < 2^63 (strided64) with N = 32 or 64:
 * n / divisor = (high N bits of n · magic + n) >> shift. */
struct cuda_ops_divider {
    uint64_t divisor, magic;
    uint32_t shift, reserved;
};

/* For every index (i0, i1, …), 0 ≤ iD < sizes[D].divisor, D < rank, with dimension 0 the *innermost*:
 * out[Σ iD·out_strides[D]] = op(a[Σ iD·a_strides[D]], b[Σ iD·b_strides[D]]). Element number n of `count` has
 * i0 = n mod size0, i1 = (n / size0) mod size1, … `out` may be exactly `a` or exactly `b`. */
struct cuda_ops_strided {
    struct cuda_ops_stamps stamps;
    uint64_t out, a, b;
    uint64_t count;
    uint32_t rank; /* ≥ 1 */
    uint32_t reserved;
    struct cuda_ops_divider sizes[CUDA_OPS_MAX_RANK];
    uint64_t out_strides[CUDA_OPS_MAX_RANK], a_strides[CUDA_OPS_MAX_RANK], b_strides[CUDA_OPS_MAX_RANK];
};

/* a is m × k, b is k × n, out is m × n; element (i, j) of batch (c0, c1, …) is address[i·row + j·column + Σ
 * cD·batch[D]].
 */
struct cuda_ops_matrix {
    uint64_t address;
    uint64_t row, column;
    uint64_t batch[CUDA_OPS_MAX_RANK]; /* dimension 0 is the innermost */
};

/* How a matrix is read from memory: neighbouring threads lie along k, or along m (of a) or n (of b). */
enum cuda_ops_access { CUDA_OPS_ACCESS_ACROSS_K, CUDA_OPS_ACCESS_ALONG_K };

/* For every batch number c in [0, batch_count), c0 = c mod batch_shape[0], c1 = (c / batch_shape[0]) mod …:
 * out[c, i, j] = alpha · Σ_l a[c, i, l] · b[c, l, j] + beta · out[c, i, j]; with beta = 0 out is not read.
 * Accumulates in f64 for f64, else in f32; alpha and beta are rounded to that type. */
struct cuda_ops_gemm {
    struct cuda_ops_stamps stamps;
    struct cuda_ops_matrix a, b, out;
    uint64_t m, n, k;
    double alpha, beta;
    uint64_t batch_count; /* ≥ 1 */
    uint64_t batch_shape[CUDA_OPS_MAX_RANK];
    uint32_t batch_rank;
    /* For speed alone. */
    uint32_t a_access, b_access; /* enum cuda_ops_access */
    uint32_t out_vector;         /* rows of out can be written in 16-byte pieces */
    uint64_t tiles_m, tiles_n;   /* tiles of the kernel's size that cover out */
};

/* A tensor as the tensor memory accelerator sees it: an encoded CUtensorMap. */
#ifdef __cplusplus
struct alignas(64) cuda_ops_map {
    uint64_t opaque[16];
};
#else
struct cuda_ops_map {
    _Alignas(64) uint64_t opaque[16];
};
#endif

enum {
    CUDA_OPS_MAPPED_THREADS = 384,     /* of every block */
    CUDA_OPS_MAPPED_DEPTH = 64,        /* steps of k in a panel */
    CUDA_OPS_MAPPED_PIECE = 64,        /* rows and columns of a box that is stored, or that does not lie along k */
    CUDA_OPS_MAPPED_SHARED = 34 << 10, /* shared memory of a block but for its panels */
    CUDA_OPS_MAPPED_SHARED_MAX = 227 << 10
};

/* The same product for f16 and bf16 on one generation of GPUs: out's rows are contiguous, a and b each along k or
 * across. The maps' dimensions are the contiguous one, the other one, and the batch; that of out ends with the last
 * whole 16 bytes of its rows. */
struct cuda_ops_gemm_mapped {
    struct cuda_ops_stamps stamps;
    struct cuda_ops_map a, b, out;
    uint64_t out_address, out_row, out_batch; /* where beta reads out; in elements */
    uint32_t m, n, k, batch_count;            /* all below 2^31, n from 8 on, k from 1 on */
    float alpha, beta;
    uint32_t a_batch, b_batch;        /* 0: all batches have this operand in common; else 1 */
    uint32_t tiles_m, tiles_n, group; /* tiles of a cluster that cover out; rows of them that run together */
    uint32_t reserved;
};

#endif

/* The kernels' parameters: each kernel takes one of these structs by value, which alone defines its result. C and CUDA
 * C++ include this header; members have fixed sizes and the same layout in both.
 *
 * Kernel symbols (extern "C", one parameter):
 *
 *     kops_<op>_<dtype>_vector            struct cuda_ops_vector    op: of OP_ARITHMETIC; dtype: f32, f64, f16, bf16,
 *                                                                   u8, u16, u32, u64, also for signed integers
 *     kops_<op>_<dtype>_plain             struct cuda_ops_vector    operands on 16-byte boundaries, with steps of 1;
 *                                                                   blocks of any number of warps
 *     kops_<op>_<dtype>_rows              struct cuda_ops_strided   needs the members for rows
 *     kops_<op>_<dtype>_tiles             struct cuda_ops_strided   needs the members for tiles
 *     kops_<op>_<dtype>_strided…          struct cuda_ops_strided   the suffix never changes the result
 *     kops_copy_<bytes>_…                 as above                  bytes: 1, 2, 4, 8; out = a, bits unchanged
 *     kops_gelu_<dtype>_…                 as above                  dtype: f32, f64; out = gelu(a), by erf
 *     kops_gemm_<dtype>_tiled_<config>    struct cuda_ops_gemm      the suffix never changes the result
 *     kops_linear_<dtype>_tiled_<config>  struct cuda_ops_gemm      with a bias, or an out wider than a and b
 *     kops_scaled_gemm_f8_tiled_<config>  struct cuda_ops_gemm_scaled, of params_scaled.h
 *     kops_repack_<bytes>                 struct cuda_ops_repack    bytes: 2, 4, 8; bits unchanged
 *     kops_repack_bf16x<pieces>           struct cuda_ops_repack    pieces: 2, 3; from f32
 *     kops_gemm_<dtype>_skinny_<config>   struct cuda_ops_gemm      m ≤ 16; b lies along k or across, see below
 *     kops_linear_<dtype>_skinny_<config> struct cuda_ops_gemm      with a bias
 *     kops_gemm_f32_small_<config>        struct cuda_ops_gemm
 *     kops_gemm_tf32_small_<config>       struct cuda_ops_gemm      from f32 to f32; a and b are rounded to tf32
 *     kops_gemm_<dtype>_hopper_<config>   struct cuda_ops_gemm_mapped
 *     kops_linear_<dtype>_hopper_<config> struct cuda_ops_gemm_mapped, with a bias
 *     kops_move                           struct cuda_ops_move
 *     kops_gate                           struct cuda_ops_gate      one thread
 *
 * The last number of a skinny or small config is the number of blocks that share the sum over k.
 *
 * Kernels loop over their work: with the launch's block size, any grid of whole clusters gives the same result.
 * Addresses are device addresses of first elements; strides count elements. f16 and bf16 are computed in f32 and
 * rounded once, to nearest even. */
#ifndef KOPS_CUDA_OPS_PARAMS_H
#define KOPS_CUDA_OPS_PARAMS_H

#include <stdint.h>

enum { CUDA_OPS_MAX_RANK = 8 };

/* Threads of a block: of the skinny kernels, and of the tf32 kernels for small matrices. */
enum { CUDA_OPS_SKINNY_THREADS = 512, CUDA_OPS_SMALL_MMA_THREADS = 128 };

/* Shapes of the element-wise kernels, chosen by measurement (kernels/cuda/lab). */
enum {
    CUDA_OPS_THREADS = 256,        /* default threads of a block */
    CUDA_OPS_PLAIN_THREADS = 1024, /* most threads of a block of a plain kernel */
    CUDA_OPS_ROW_THREADS = 128,    /* threads of a block of a rows kernel */
    CUDA_OPS_VECTOR_PACKS = 1,     /* 16-byte packs of a tile of out per thread */
    CUDA_OPS_ROW_PIECES = 2,       /* 16-byte pieces of a row of out per thread */
    CUDA_OPS_ROW_PIECES_8 = 4,     /* … for elements of 8 bytes and two inputs */
    CUDA_OPS_STRIDED_ELEMENTS = 4, /* elements of a tile of out per thread */
    CUDA_OPS_TILE_SIDE = 64,       /* side of a square tile, in elements */
    CUDA_OPS_TILE_SIDE_8 = 32,     /* … for elements of 8 bytes */
};

/* The stamp, which the kernel writes; all zero: none. The first member of all parameter structs. */
struct cuda_ops_stamps {
    uint64_t times;    /* address of two u64: the kernel's begin and end, in ns of the GPU's clock */
    uint64_t count;    /* address of a u32 for this kernel alone, which is 0 before and after it */
    uint32_t counting; /* how many of the grid's last blocks count themselves when they end; at least 1 */
    uint32_t reserved;
};

enum {
    CUDA_OPS_COUNTING_MAX = 4096, /* most blocks that count: more than run at one time, so the others end before */
    CUDA_OPS_COUNTS = 1024,       /* words in kops_stamp_counts, which stamp.cu defines */
    CUDA_OPS_COUNT_BYTES = 32     /* stride of these words */
};

/* A gate ends when the u64 at `go` is at least `value`, or after `most_ns`. */
struct cuda_ops_gate {
    struct cuda_ops_stamps stamps;
    uint64_t go; /* address of a u64 in host memory */
    uint64_t value, most_ns;
};

/* Copies `count` pieces of memory, each of `units` · `width` bytes; `width` is 1, 2, 4, 8 or 16 and divides the
 * addresses. Targets overlap no source; where targets overlap, both get the same bytes. A tile is CUDA_OPS_THREADS
 * units of a piece, or its rest. The next piece's tiles begin with number `tiles_end`. */
enum { CUDA_OPS_MOVE_PIECES = 16 };

struct cuda_ops_move_piece {
    uint64_t from, to;
    uint32_t units, width;
    uint32_t tiles_end;
    uint32_t reserved;
};

struct cuda_ops_move {
    struct cuda_ops_stamps stamps;
    uint32_t count;
    uint32_t tiles; /* tiles of all pieces */
    struct cuda_ops_move_piece pieces[CUDA_OPS_MOVE_PIECES];
};

/* For i in [0, count): out[i] = op(a[i·a_step], b[i·b_step]); square and copy have no b (b = 0, b_step = 0). Steps are
 * 0 or 1. `out` may be exactly `a` or exactly `b`. */
struct cuda_ops_vector {
    struct cuda_ops_stamps stamps;
    uint64_t out, a, b;
    uint64_t count;
    uint32_t a_step, b_step;
    /* Elements before the first 16-byte boundary of out; affects speed alone. */
    uint32_t head;
    uint32_t reserved;
};

/* Division by `divisor` of n < 2^31 or, in strided64, n < 2^63, with N = 32 or 64:
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
    uint32_t rank;   /* ≥ 1 */
    uint32_t turned; /* tiles: bits of inputs that are read along dimension 1; not 0 */
    struct cuda_ops_divider sizes[CUDA_OPS_MAX_RANK];
    uint64_t out_strides[CUDA_OPS_MAX_RANK], a_strides[CUDA_OPS_MAX_RANK], b_strides[CUDA_OPS_MAX_RANK];
    /* rows: out_strides[0] is 1, a_strides[0] and b_strides[0] are 0 or 1. `pieces`: threads for a row of out
     * (dimension 0), each for CUDA_OPS_ROW_PIECES (_8) of the most aligned 16-byte pieces that a row may touch. tiles:
     * rank ≥ 2, out_strides[0] is 1; an input in `turned` has stride 1 along dimension 1, any other 0 or 1 along
     * dimension 0. `pieces`, `pieces_down`: tiles along dimensions 0 and 1. `work`: threads or tiles, below 2^31. */
    uint64_t work;
    struct cuda_ops_divider pieces, pieces_down;
    uint64_t a_end, b_end; /* rows: addresses behind the last elements */
};

/* a is m × k, b is k × n, out is m × n. Element (i, j) of batch (c0, c1, …) is
 * address[i·row + j·column + Σ cD·batch[D]]. */
struct cuda_ops_matrix {
    uint64_t address;
    uint64_t row, column;
    uint64_t batch[CUDA_OPS_MAX_RANK]; /* dimension 0 is the innermost */
};

/* How a matrix is read: neighbouring threads lie along k, or along m (of a) or n (of b). */
enum cuda_ops_access { CUDA_OPS_ACCESS_ACROSS_K, CUDA_OPS_ACCESS_ALONG_K };

/* Functions that are applied to a sum with its bias. */
enum cuda_ops_activation { CUDA_OPS_NONE, CUDA_OPS_RELU, CUDA_OPS_GELU, CUDA_OPS_GELU_TANH };

/* For every batch number c in [0, batch_count), c0 = c mod batch_shape[0], c1 = (c / batch_shape[0]) mod …:
 * out[c, i, j] = activation(alpha · Σ_l a[c, i, l] · b[c, l, j] + beta · out[c, i, j] + bias[c, i, j]). With beta = 0
 * out is not read. A bias address of 0: no bias and no activation; with a bias beta is 0. Sums are in f64 for f64, else
 * in f32; alpha and beta are rounded to that type. */
struct cuda_ops_gemm {
    struct cuda_ops_stamps stamps;
    struct cuda_ops_matrix a, b, out;
    struct cuda_ops_matrix bias; /* m × n, broadcast; of the type of a and b */
    uint64_t m, n, k;
    double alpha, beta;
    uint64_t batch_count; /* ≥ 1 */
    uint64_t batch_shape[CUDA_OPS_MAX_RANK];
    uint32_t batch_rank;
    uint32_t out_wide;   /* out has the type of the sums, which is wider than a's and b's: f32 for f16 and bf16 */
    uint32_t activation; /* enum cuda_ops_activation */
    /* The members below affect speed alone. */
    uint32_t a_access, b_access; /* enum cuda_ops_access */
    uint32_t out_vector;         /* rows of out are written in 16-byte pieces */
    uint64_t tiles_m, tiles_n;   /* tiles of the kernel's size that cover out */
};

/* Copies of matrices for a gemm. For every batch number c of a part, split as above, 0 ≤ i < to_rows and
 * 0 ≤ j < to_columns:
 * to[Σ cD·to_batch[D] + i·to_row + j·to_column] = from[Σ cD·batch[D] + i·row + j·column] where i < rows and
 * j < columns, else 0.
 *
 * With pieces, an f32 x becomes bf16 numbers at to[… + pieces[p]], with x ≈ Σ piece p · 2^(-7p). Each piece is what the
 * pieces before it leave of x, times 2^(7p), rounded to nearest even. So a piece has about the exponent of x, and small
 * numbers keep their bits. If x would round to infinity, its pieces are truncated instead. If x is infinite or NaN, the
 * last piece is x and the others are 0: see compute/repack_sketch.h. */
enum { CUDA_OPS_REPACK_PARTS = 2, CUDA_OPS_REPACK_BATCHES = CUDA_OPS_MAX_RANK - 2, CUDA_OPS_PIECES_MAX = 3 };

struct cuda_ops_repack_part {
    uint64_t from, to;
    uint64_t rows, columns, row, column;
    uint64_t to_rows, to_columns, to_row, to_column;
    uint64_t pieces[CUDA_OPS_PIECES_MAX];
    uint64_t batch_shape[CUDA_OPS_REPACK_BATCHES], batch[CUDA_OPS_REPACK_BATCHES], to_batch[CUDA_OPS_REPACK_BATCHES];
    /* A thread takes a chunk of a row of `to`: aligned 16 bytes, or the part of them that is in the row. If the
     * elements of `to` are not contiguous, a chunk has as many elements. */
    struct cuda_ops_divider chunks; /* chunks of a row */
    struct cuda_ops_divider height; /* to_rows */
    uint64_t count;                 /* chunks in all batches */
    uint32_t batch_rank;
    uint32_t reserved;
};

struct cuda_ops_repack {
    struct cuda_ops_stamps stamps;
    uint64_t first_blocks;                                    /* blocks that take part 0; the others take part 1 */
    struct cuda_ops_repack_part parts[CUDA_OPS_REPACK_PARTS]; /* count 0: unused */
};

/* An encoded CUtensorMap: a tensor for the tensor memory accelerator. */
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
    CUDA_OPS_MAPPED_THREADS = 384,     /* threads of a block */
    CUDA_OPS_MAPPED_DEPTH = 64,        /* steps of k in a panel */
    CUDA_OPS_MAPPED_PIECE = 64,        /* rows and columns of a stored box, and of a box that does not lie along k */
    CUDA_OPS_MAPPED_SHARED = 34 << 10, /* shared memory of a block without its panels */
    CUDA_OPS_MAPPED_SHARED_MAX = 227 << 10
};

/* The product of struct cuda_ops_gemm for f16 and bf16 on sm_90a: out's rows are contiguous, a and b each along k or
 * across. The dimensions of maps are the contiguous one, the other one, and the batch. The map of out ends with the
 * last whole 16 bytes of its rows. */
struct cuda_ops_gemm_mapped {
    struct cuda_ops_stamps stamps;
    struct cuda_ops_map a, b, out;
    uint64_t out_address, out_row, out_batch; /* out for beta; strides in elements */
    uint32_t m, n, k, batch_count;            /* below 2^31; n ≥ 8, k ≥ 1 */
    float alpha, beta;
    uint32_t a_batch, b_batch;        /* 0: all batches share this operand; else 1 */
    uint32_t tiles_m, tiles_n, group; /* clusters' tiles that cover out; rows of tiles that run together */
    uint32_t activation;              /* enum cuda_ops_activation; CUDA_OPS_NONE without a bias */
    uint64_t bias_address;            /* elements have out's type; 0: none. Strides in elements */
    uint64_t bias_row, bias_column, bias_batch;
    uint32_t bias_pairs; /* all rows share the bias, which is read in 4-byte pairs; affects speed alone */
    uint32_t reserved;
};

#endif

/* The kernels' parameters: each kernel takes one of these structs by value, and the struct alone defines its result. C
 * and CUDA C++ include this header; all members have fixed sizes and the same layout in both.
 *
 * Kernel symbols (extern "C", one parameter):
 *
 *     kops_<op>_<dtype>_vector            struct cuda_ops_vector    op: of OP_ARITHMETIC; dtype: f32, f64, f16, bf16,
 *                                                                   u8, u16, u32, u64, which signed integers take, too
 *     kops_<op>_<dtype>_plain             struct cuda_ops_vector    operands on 16-byte boundaries, with steps of 1;
 *                                                                   blocks of any whole warps
 *     kops_<op>_<dtype>_rows              struct cuda_ops_strided   where the members for it are set
 *     kops_<op>_<dtype>_tiles             struct cuda_ops_strided   where the members for it are set
 *     kops_<op>_<dtype>_strided…          struct cuda_ops_strided   the suffix never changes the result
 *     kops_copy_<bytes>_…                 the same                  bytes: 1, 2, 4, 8; out = a, bits unchanged
 *     kops_gelu_<dtype>_…                 the same                  dtype: f32, f64; out = gelu(a), by erf
 *     kops_gemm_<dtype>_tiled_<config>    struct cuda_ops_gemm      the suffix never changes the result
 *     kops_linear_<dtype>_tiled_<config>  struct cuda_ops_gemm      the same with a bias, or an out wider than a and b
 *     kops_scaled_gemm_f8_tiled_<config>  struct cuda_ops_gemm_scaled, of params_scaled.h
 *     kops_repack_<bytes>                 struct cuda_ops_repack    bytes: 2, 4, 8; bits unchanged
 *     kops_repack_bf16x<pieces>           struct cuda_ops_repack    pieces: 2, 3; from f32
 *     kops_gemm_<dtype>_skinny_<config>   struct cuda_ops_gemm      m ≤ 16; b lies along k or across, see below
 *     kops_linear_<dtype>_skinny_<config> struct cuda_ops_gemm      the same with a bias
 *     kops_gemm_f32_small_<config>        struct cuda_ops_gemm
 *     kops_gemm_tf32_small_<config>       struct cuda_ops_gemm      from f32 to f32; a and b are rounded to tf32
 *     kops_gemm_<dtype>_hopper_<config>   struct cuda_ops_gemm_mapped
 *     kops_linear_<dtype>_hopper_<config> struct cuda_ops_gemm_mapped, with a bias
 *     kops_move                           struct cuda_ops_move
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

/* Of every block of the skinny kernels, and of those of small matrices in tf32. */
enum { CUDA_OPS_SKINNY_THREADS = 512, CUDA_OPS_SMALL_MMA_THREADS = 128 };

/* Shapes of the elementwise kernels, chosen by measurement (kernels/cuda/lab). */
enum {
    CUDA_OPS_THREADS = 256,        /* of every block, where nothing else is said */
    CUDA_OPS_PLAIN_THREADS = 1024, /* of a block of a plain kernel at most */
    CUDA_OPS_ROW_THREADS = 128,    /* of a block of a rows kernel */
    CUDA_OPS_VECTOR_PACKS = 1,     /* 16-byte packs of out that a thread takes of a tile */
    CUDA_OPS_ROW_PIECES = 2,       /* 16-byte pieces of a row of out that a thread takes */
    CUDA_OPS_ROW_PIECES_8 = 4,     /* where an element has 8 bytes, and two inputs are read */
    CUDA_OPS_STRIDED_ELEMENTS = 4, /* elements of out that a thread takes of a tile */
    CUDA_OPS_TILE_SIDE = 64,       /* elements of a square tile along each side */
    CUDA_OPS_TILE_SIDE_8 = 32,     /* where an element has 8 bytes */
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

/* The `count` pieces of memory are copied, each of `units` times `width` bytes, which is 1, 2, 4, 8 or 16 and divides
 * its addresses. Targets overlap no source; where they overlap
 * each other, both get the same bytes. A tile is CUDA_OPS_THREADS units of a piece, or the rest of it;
 * those of piece n end before number `tiles_end`, where the next piece's begin. */
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
    uint32_t tiles; /* of all */
    struct cuda_ops_move_piece pieces[CUDA_OPS_MOVE_PIECES];
};

/* For i in [0, count): out[i] = op(a[i·a_step], b[i·b_step]); square and copy have no b (b = 0, b_step = 0). Steps are
 * 0 or 1. `out` may be exactly `a` or exactly `b`. */
struct cuda_ops_vector {
    struct cuda_ops_stamps stamps;
    uint64_t out, a, b;
    uint64_t count;
    uint32_t a_step, b_step;
    /* For speed alone: elements before the first 16-byte boundary of out. */
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
    uint32_t turned; /* tiles: inputs that are read along dimension 1, a bit each; at least one */
    struct cuda_ops_divider sizes[CUDA_OPS_MAX_RANK];
    uint64_t out_strides[CUDA_OPS_MAX_RANK], a_strides[CUDA_OPS_MAX_RANK], b_strides[CUDA_OPS_MAX_RANK];
    /* rows: out_strides[0] is 1, a_strides[0] and b_strides[0] are 0 or 1; `pieces` are threads
     * for a row of out (dimension 0): for CUDA_OPS_ROW_PIECES (_8) of the most aligned 16-byte pieces that a row
     * touches. tiles: rank ≥ 2, out_strides[0] is 1; an input in `turned` has stride 1 along dimension 1, and any other
     * 0 or 1 along dimension 0; `pieces` and `pieces_down` are the tiles along dimensions 0 and 1. `work`: threads, or
     * tiles, of all; below 2^31. */
    uint64_t work;
    struct cuda_ops_divider pieces, pieces_down;
    uint64_t a_end, b_end; /* addresses behind the last elements, for rows */
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

/* What a sum with its bias goes through. */
enum cuda_ops_activation { CUDA_OPS_NONE, CUDA_OPS_RELU, CUDA_OPS_GELU, CUDA_OPS_GELU_TANH };

/* For every batch number c in [0, batch_count), c0 = c mod batch_shape[0], c1 = (c / batch_shape[0]) mod …:
 * out[c, i, j] = activation(alpha · Σ_l a[c, i, l] · b[c, l, j] + beta · out[c, i, j] + bias[c, i, j]); with beta = 0
 * out is not read. A bias address of 0 is none, and then there is no activation; with a bias beta is 0.
 * Accumulates in f64 for f64, else in f32; alpha and beta are rounded to that type. */
struct cuda_ops_gemm {
    struct cuda_ops_stamps stamps;
    struct cuda_ops_matrix a, b, out;
    struct cuda_ops_matrix bias; /* m × n like out, broadcast: of the type of a and b */
    uint64_t m, n, k;
    double alpha, beta;
    uint64_t batch_count; /* ≥ 1 */
    uint64_t batch_shape[CUDA_OPS_MAX_RANK];
    uint32_t batch_rank;
    uint32_t out_wide;   /* out is of the type of the sums where that is wider than a's and b's: f32 for f16 and bf16 */
    uint32_t activation; /* enum cuda_ops_activation */
    /* For speed alone. */
    uint32_t a_access, b_access; /* enum cuda_ops_access */
    uint32_t out_vector;         /* rows of out can be written in 16-byte pieces */
    uint64_t tiles_m, tiles_n;   /* tiles of the kernel's size that cover out */
};

/* Matrices that are copied for a gemm. For every batch number c of a part, split as above, 0 ≤ i < to_rows and
 * 0 ≤ j < to_columns:
 * to[Σ cD·to_batch[D] + i·to_row + j·to_column] = from[Σ cD·batch[D] + i·row + j·column] where i < rows and
 * j < columns, else 0.
 *
 * With pieces, x of f32 becomes bf16 numbers at to[… + pieces[p]], of which x = Σ piece p · 2^(-7p), as far as so many
 * pieces tell: each is what the ones before leave, rounded to nearest even, times 2^(7p). So a piece has the exponent
 * of x, and small numbers keep their bits. Of an x that would round to infinity the pieces are cut off instead. Of an
 * infinite x and of NaN all pieces are 0 but the last, which is x: see compute/repack_sketch.h. */
enum { CUDA_OPS_REPACK_PARTS = 2, CUDA_OPS_REPACK_BATCHES = CUDA_OPS_MAX_RANK - 2, CUDA_OPS_PIECES_MAX = 3 };

struct cuda_ops_repack_part {
    uint64_t from, to;
    uint64_t rows, columns, row, column;
    uint64_t to_rows, to_columns, to_row, to_column;
    uint64_t pieces[CUDA_OPS_PIECES_MAX];
    uint64_t batch_shape[CUDA_OPS_REPACK_BATCHES], batch[CUDA_OPS_REPACK_BATCHES], to_batch[CUDA_OPS_REPACK_BATCHES];
    /* A thread takes a chunk of a row of `to`: 16 bytes of it that lie on a 16-byte boundary, or the part of them that
     * is in the row. With strides between the elements of `to` it is as many elements. */
    struct cuda_ops_divider chunks; /* of a row */
    struct cuda_ops_divider height; /* to_rows */
    uint64_t count;                 /* of chunks, in all batches */
    uint32_t batch_rank;
    uint32_t reserved;
};

struct cuda_ops_repack {
    struct cuda_ops_stamps stamps;
    uint64_t first_blocks; /* the blocks up to this one take part 0, the others part 1 */
    struct cuda_ops_repack_part parts[CUDA_OPS_REPACK_PARTS]; /* count 0: none */
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
    uint32_t activation;              /* enum cuda_ops_activation; without a bias none */
    uint64_t bias_address;            /* of elements of the type of out; 0: none. Strides in elements */
    uint64_t bias_row, bias_column, bias_batch;
    uint32_t bias_pairs; /* for speed alone: a vector in 4-byte pieces that all rows have in common */
    uint32_t reserved;
};

#endif

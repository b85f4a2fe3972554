/* The bodies of the element-wise kernels. An op is a struct with a static apply() on wide values and ARITY 1 or 2.
 *
 * Reads are plain or evict-first loads, never on the read-only path, since out may be an input. Each element is read by
 * the thread that writes it, before the write. An input is read in aligned 16-byte pieces; bytes in them that are not
 * the input's are dropped. */
#ifndef KOPS_CUDA_OPS_ELEMENTWISE_CUH
#define KOPS_CUDA_OPS_ELEMENTWISE_CUH

#include "dtypes.cuh"
#include "packs.cuh"
#include "params.h"
#include "stamp.cuh"

template <typename T, typename Op> __device__ __forceinline__ T apply_one(T a, T b)
{
    return element<T>::narrow(Op::apply(widen(a), widen(b)));
}

template <typename T, typename Op> __device__ __forceinline__ uint4 apply_pack(uint4 a, uint4 b)
{
    pack<T> x(a), y(b), z;
#pragma unroll
    for (int i = 0; i < pack<T>::WIDTH; i++)
        z.e[i] = apply_one<T, Op>(x.e[i], y.e[i]);
    return z.bits;
}

/* ---- vector: each operand is contiguous, or a single element ---- */

/* Tiles of BLOCK · UNROLL packs. Each thread has UNROLL independent 16-byte loads of each operand in flight, or twice
 * as many of an operand whose offset from a 16-byte boundary differs from out's. */
template <typename T, typename Op, int BLOCK, int UNROLL, cache_hint LOADS, cache_hint STORES, bool ALIGNED>
__device__ __forceinline__ void vector_tiles(const pack_source &a, const pack_source &b, uint4 *out, uint64_t packs)
{
    constexpr uint32_t TILE = BLOCK * UNROLL;

    for (uint64_t tile = (uint64_t)blockIdx.x * TILE; tile < packs; tile += (uint64_t)gridDim.x * TILE) {
        const uint64_t first = tile + threadIdx.x;
        pack_bits x[UNROLL], y[UNROLL];
        if (packs - tile >= TILE) {
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                x[u] = load_pack<LOADS, ALIGNED>(a, first + u * BLOCK);
                if (Op::ARITY == 2)
                    y[u] = load_pack<LOADS, ALIGNED>(b, first + u * BLOCK);
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const uint4 of_a = join_pack<sizeof(T), ALIGNED>(a, x[u]);
                const uint4 of_b = Op::ARITY == 2 ? join_pack<sizeof(T), ALIGNED>(b, y[u]) : of_a;
                store_bits<STORES>(out + first + u * BLOCK, apply_pack<T, Op>(of_a, of_b));
            }
        } else {
#pragma unroll 1
            for (uint64_t i = first; i < packs; i += BLOCK) {
                const uint4 of_a = join_pack<sizeof(T), ALIGNED>(a, load_pack<LOADS, ALIGNED>(a, i));
                uint4 of_b = of_a;
                if (Op::ARITY == 2)
                    of_b = join_pack<sizeof(T), ALIGNED>(b, load_pack<LOADS, ALIGNED>(b, i));
                store_bits<STORES>(out + i, apply_pack<T, Op>(of_a, of_b));
            }
        }
    }
}

template <typename T, typename Op, int BLOCK = CUDA_OPS_THREADS, int UNROLL = CUDA_OPS_VECTOR_PACKS,
          cache_hint LOADS = CACHE_DEFAULT, cache_hint STORES = CACHE_DEFAULT>
__device__ __forceinline__ void vector_kernel(const cuda_ops_vector &p)
{
    const uint64_t whole = (p.count - p.head) / pack<T>::WIDTH;
    const pack_source a = source_of<T>(p.a, p.a_step, p.head);
    const pack_source b = Op::ARITY == 2 ? source_of<T>(p.b, p.b_step, p.head) : a;
    uint4 *out = reinterpret_cast<uint4 *>(reinterpret_cast<T *>(p.out) + p.head);
    /* The last pack is left to the tail, since the piece behind a shifted operand's may lie outside of its memory. */
    const uint64_t packs = whole && (a.shift || b.shift) ? whole - 1 : whole;

    if (a.plain && b.plain)
        vector_tiles<T, Op, BLOCK, UNROLL, LOADS, STORES, true>(a, b, out, packs);
    else
        vector_tiles<T, Op, BLOCK, UNROLL, LOADS, STORES, false>(a, b, out, packs);

    /* Elements before and behind the packs, fewer than three packs. */
    const uint32_t tail = (uint32_t)(p.count - p.head - packs * pack<T>::WIDTH);
    if (blockIdx.x == 0 && threadIdx.x < p.head + tail) {
        const uint64_t i = threadIdx.x < p.head ? threadIdx.x : p.count - tail + (threadIdx.x - p.head);
        const T x = reinterpret_cast<const T *>(p.a)[p.a_step ? i : 0];
        const T y = Op::ARITY == 2 ? reinterpret_cast<const T *>(p.b)[p.b_step ? i : 0] : x;
        reinterpret_cast<T *>(p.out)[i] = apply_one<T, Op>(x, y);
    }
}

/* For operands that begin on 16-byte boundaries and have steps of 1; blocks of any number of warps. Has few
 * instructions, which take most of the time of small tensors. */
template <typename T, typename Op> __device__ __forceinline__ void plain_kernel(const cuda_ops_vector &p)
{
    const uint64_t packs = p.count / pack<T>::WIDTH;
    const uint4 *a = reinterpret_cast<const uint4 *>(p.a), *b = reinterpret_cast<const uint4 *>(p.b);
    uint4 *out = reinterpret_cast<uint4 *>(p.out);

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += (uint64_t)gridDim.x * blockDim.x)
        out[i] = apply_pack<T, Op>(a[i], Op::ARITY == 2 ? b[i] : a[i]);

    const uint32_t tail = (uint32_t)(p.count % pack<T>::WIDTH);
    if (blockIdx.x == 0 && threadIdx.x < tail) {
        const uint64_t i = p.count - tail + threadIdx.x;
        const T x = reinterpret_cast<const T *>(p.a)[i];
        const T y = Op::ARITY == 2 ? reinterpret_cast<const T *>(p.b)[i] : x;
        reinterpret_cast<T *>(p.out)[i] = apply_one<T, Op>(x, y);
    }
}

/* ---- rows: the innermost dimension is contiguous in out, and contiguous or repeated in the inputs ---- */

__device__ __forceinline__ uint32_t divide(uint32_t n, const cuda_ops_divider &d)
{
    return (__umulhi(n, (uint32_t)d.magic) + n) >> d.shift;
}

__device__ __forceinline__ uint64_t divide(uint64_t n, const cuda_ops_divider &d)
{
    return (__umul64hi(n, d.magic) + n) >> d.shift;
}

/* Returns n / d; *ret_rest: the remainder. */
template <typename Index> __device__ __forceinline__ Index divide(Index n, const cuda_ops_divider &d, Index *ret_rest)
{
    const Index quotient = divide(n, d);
    *ret_rest = n - quotient * (Index)d.divisor;
    return quotient;
}

struct places {
    uint64_t out, a, b;
};

/* Finds row (or tile of rows) number `n`, counted along the dimensions from `from` on. */
template <typename T, int ARITY>
__device__ __forceinline__ places locate_outer(const cuda_ops_strided &p, uint32_t from, uint32_t n)
{
    places at = {p.out, p.a, p.b};
#pragma unroll 1
    for (uint32_t d = from; d < p.rank; d++) {
        uint32_t i = n;
        if (d + 1 < p.rank)
            n = divide(n, p.sizes[d], &i);
        at.out += i * p.out_strides[d] * sizeof(T);
        at.a += i * p.a_strides[d] * sizeof(T);
        if (ARITY == 2)
            at.b += i * p.b_strides[d] * sizeof(T);
    }
    return at;
}

template <typename T, typename Op>
constexpr int row_pieces = Op::ARITY == 2 && sizeof(T) == 8 ? CUDA_OPS_ROW_PIECES_8 : CUDA_OPS_ROW_PIECES;

/* A thread takes UNROLL aligned 16-byte pieces of one row of out, so that it finds the row once and has all loads in
 * flight. The row may have only a part of its first and last piece. */
template <typename T, typename Op> __device__ __forceinline__ void rows_kernel(const cuda_ops_strided &p)
{
    constexpr int WIDTH = pack<T>::WIDTH, BLOCK = CUDA_OPS_ROW_THREADS;
    constexpr int UNROLL = row_pieces<T, Op>;
    const int64_t size = (int64_t)p.sizes[0].divisor;

    for (uint64_t n = (uint64_t)blockIdx.x * BLOCK + threadIdx.x; n < p.work; n += (uint64_t)gridDim.x * BLOCK) {
        uint32_t piece;
        const uint32_t row = divide((uint32_t)n, p.pieces, &piece);
        const places at = locate_outer<T, Op::ARITY>(p, 1, row);
        const row_source a = row_of<T>(at.a, p.a_strides[0] != 0);
        const row_source b = Op::ARITY == 2 ? row_of<T>(at.b, p.b_strides[0] != 0) : a;
        /* Index in the row of the piece's first element; negative where the piece begins before the row. */
        const int64_t start = (int64_t)piece * WIDTH - (int64_t)(at.out % 16 / sizeof(T));
        const int64_t step = (int64_t)p.pieces.divisor * WIDTH;
        pack_bits x[UNROLL], y[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            x[u] = load_row<T>(a, start + u * step, size, p.a_end);
            if (Op::ARITY == 2)
                y[u] = load_row<T>(b, start + u * step, size, p.b_end);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int64_t first = start + u * step;
            const uint4 of_a = join_row<T>(a, start, x[u]);
            const pack<T> z(apply_pack<T, Op>(of_a, Op::ARITY == 2 ? join_row<T>(b, start, y[u]) : of_a));
            T *to = reinterpret_cast<T *>(at.out + (uint64_t)first * sizeof(T));
            if (first >= 0 && first + WIDTH <= size) {
                *reinterpret_cast<uint4 *>(to) = z.bits;
            } else {
#pragma unroll
                for (int i = 0; i < WIDTH; i++) {
                    if (first + i >= 0 && first + i < size)
                        to[i] = z.e[i];
                }
            }
        }
    }
}

/* ---- tiles: an input is contiguous along dimension 1, and out along dimension 0 ---- */

/* A square tile of SIDE · SIDE elements, of which a thread takes COUNT in one column, STEP rows apart. */
template <typename T, int BLOCK> struct tile_shape {
    static constexpr int SIDE = sizeof(T) == 8 ? CUDA_OPS_TILE_SIDE_8 : CUDA_OPS_TILE_SIDE;
    static constexpr int STEP = BLOCK / SIDE, COUNT = SIDE / STEP;
    static constexpr int PITCH = SIDE + (sizeof(T) < 4 ? 4 / sizeof(T) : 1); /* avoids bank conflicts */
};

/* Reads the thread's elements of a tile of which `height` · `width` elements exist. Element u is `down + u · STEP`
 * along one dimension, and `across` along the other. */
template <typename T, int BLOCK>
__device__ __forceinline__ void read_tile(T (&into)[tile_shape<T, BLOCK>::COUNT], uint64_t address,
                                          uint64_t down_stride, uint64_t across_stride, uint32_t height, uint32_t width)
{
    using shape = tile_shape<T, BLOCK>;
    const uint32_t across = threadIdx.x % shape::SIDE, down = threadIdx.x / shape::SIDE;
    const T *from = reinterpret_cast<const T *>(address) + across * across_stride + down * down_stride;
#pragma unroll
    for (int u = 0; u < shape::COUNT; u++) {
        if (across < width && down + u * shape::STEP < height)
            into[u] = from[u * shape::STEP * down_stride];
    }
}

template <typename T, int BLOCK>
__device__ __forceinline__ void write_tile(const T (&values)[tile_shape<T, BLOCK>::COUNT], uint64_t address,
                                           uint64_t down_stride, uint32_t height, uint32_t width)
{
    using shape = tile_shape<T, BLOCK>;
    const uint32_t across = threadIdx.x % shape::SIDE, down = threadIdx.x / shape::SIDE;
    T *to = reinterpret_cast<T *>(address) + across + down * down_stride;
#pragma unroll
    for (int u = 0; u < shape::COUNT; u++) {
        if (across < width && down + u * shape::STEP < height)
            to[u * shape::STEP * down_stride] = values[u];
    }
}

/* Transposes the block's tile. */
template <typename T, int BLOCK> __device__ __forceinline__ void turn_tile(T (&values)[tile_shape<T, BLOCK>::COUNT])
{
    using shape = tile_shape<T, BLOCK>;
    __shared__ T tile[shape::SIDE][shape::PITCH];
    const uint32_t across = threadIdx.x % shape::SIDE, down = threadIdx.x / shape::SIDE;
#pragma unroll
    for (int u = 0; u < shape::COUNT; u++)
        tile[across][down + u * shape::STEP] = values[u];
    __syncthreads();
#pragma unroll
    for (int u = 0; u < shape::COUNT; u++)
        values[u] = tile[down + u * shape::STEP][across];
    __syncthreads(); /* before the next tile overwrites `tile` */
}

/* Inputs with a bit in p.turned are read along dimension 1, and then transposed. If all inputs have the bit, only the
 * result is transposed. */
template <typename T, typename Op, int BLOCK = CUDA_OPS_THREADS>
__device__ __forceinline__ void tiles_kernel(const cuda_ops_strided &p)
{
    using shape = tile_shape<T, BLOCK>;
    constexpr uint32_t ALL = (1 << Op::ARITY) - 1;

    for (uint64_t n = blockIdx.x; n < p.work; n += gridDim.x) {
        uint32_t x, y;
        const uint32_t outer = divide(divide((uint32_t)n, p.pieces, &x), p.pieces_down, &y);
        places at = locate_outer<T, Op::ARITY>(p, 2, outer);
        const uint64_t x0 = (uint64_t)x * shape::SIDE, y0 = (uint64_t)y * shape::SIDE;
        const uint64_t x_left = p.sizes[0].divisor - x0, y_left = p.sizes[1].divisor - y0;
        const uint32_t width = x_left < shape::SIDE ? (uint32_t)x_left : shape::SIDE;
        const uint32_t height = y_left < shape::SIDE ? (uint32_t)y_left : shape::SIDE;
        T a[shape::COUNT] = {}, b[shape::COUNT] = {};

        at.out += (x0 + y0 * p.out_strides[1]) * sizeof(T);
        at.a += (x0 * p.a_strides[0] + y0 * p.a_strides[1]) * sizeof(T);
        at.b += (x0 * p.b_strides[0] + y0 * p.b_strides[1]) * sizeof(T);
        if (p.turned & 1)
            read_tile<T, BLOCK>(a, at.a, p.a_strides[0], p.a_strides[1], width, height);
        else
            read_tile<T, BLOCK>(a, at.a, p.a_strides[1], p.a_strides[0], height, width);
        if (Op::ARITY == 2 && p.turned & 2)
            read_tile<T, BLOCK>(b, at.b, p.b_strides[0], p.b_strides[1], width, height);
        else if (Op::ARITY == 2)
            read_tile<T, BLOCK>(b, at.b, p.b_strides[1], p.b_strides[0], height, width);
        if (p.turned != ALL && p.turned & 1)
            turn_tile<T, BLOCK>(a);
        else if (p.turned != ALL)
            turn_tile<T, BLOCK>(b);
#pragma unroll
        for (int u = 0; u < shape::COUNT; u++)
            a[u] = apply_one<T, Op>(a[u], Op::ARITY == 2 ? b[u] : a[u]);
        if (p.turned == ALL)
            turn_tile<T, BLOCK>(a);
        write_tile<T, BLOCK>(a, at.out, p.out_strides[1], height, width);
    }
}

/* ---- strided: any strides ---- */

/* Neighbouring threads take neighbouring elements of out; each thread has UNROLL elements in flight. Index is uint32_t
 * if the count and all offsets are below 2^31, else uint64_t. */
template <typename T, typename Op, typename Index, int BLOCK = CUDA_OPS_THREADS, int UNROLL = CUDA_OPS_STRIDED_ELEMENTS>
__device__ __forceinline__ void strided_kernel(const cuda_ops_strided &p)
{
    const T *in_a = reinterpret_cast<const T *>(p.a), *in_b = reinterpret_cast<const T *>(p.b);
    T *to = reinterpret_cast<T *>(p.out);

    for (uint64_t tile = (uint64_t)blockIdx.x * (BLOCK * UNROLL); tile < p.count;
         tile += (uint64_t)gridDim.x * (BLOCK * UNROLL)) {
        Index n[UNROLL], out[UNROLL], a[UNROLL], b[UNROLL];
        T x[UNROLL], y[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const uint64_t at = tile + u * BLOCK + threadIdx.x;
            n[u] = (Index)(at < p.count ? at : 0);
            out[u] = a[u] = b[u] = 0;
        }
#pragma unroll 1
        for (uint32_t d = 0; d < p.rank; d++) {
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                Index i = n[u];
                if (d + 1 < p.rank)
                    n[u] = divide(n[u], p.sizes[d], &i);
                out[u] += i * (Index)p.out_strides[d];
                a[u] += i * (Index)p.a_strides[d];
                if (Op::ARITY == 2)
                    b[u] += i * (Index)p.b_strides[d];
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            x[u] = in_a[a[u]];
            y[u] = Op::ARITY == 2 ? in_b[b[u]] : x[u];
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (tile + u * BLOCK + threadIdx.x < p.count)
                to[out[u]] = apply_one<T, Op>(x[u], y[u]);
        }
    }
}

/* ---- the kernels ---- */

/* Resident blocks that registers must allow. Multiprocessors of other architectures hold 1024 or 1536 threads, so at
 * most 1024 are asked for. */
#if defined(__CUDA_ARCH__) &&                                                                                          \
    (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000 || __CUDA_ARCH__ == 1030)
#define CUDA_OPS_RESIDENT(blocks, threads) (blocks)
#define CUDA_OPS_RESIDENT_ROWS_8           6 /* spills, but with 5 a repeated f64 row took 1.04 x the time */
#else
#define CUDA_OPS_RESIDENT_ROWS_8           5
#define CUDA_OPS_RESIDENT(blocks, threads) ((blocks) < 1024 / (threads) ? (blocks) : 1024 / (threads))
#endif

#define CUDA_OPS_KERNEL(name, Params, threads, resident, ...)                                                          \
    extern "C" __global__ void __launch_bounds__(threads, CUDA_OPS_RESIDENT(resident, threads))                        \
        kops_##name(const __grid_constant__ Params p)                                                                  \
    {                                                                                                                  \
        stamp_start(p.stamps);                                                                                         \
        __VA_ARGS__(p);                                                                                                \
        stamp_end(p.stamps);                                                                                           \
    }

#define CUDA_OPS_ELEMENTWISE(op, dtype, T, Op)                                                                         \
    CUDA_OPS_KERNEL(op##_##dtype##_plain, cuda_ops_vector, CUDA_OPS_PLAIN_THREADS,                                     \
                    Op::ARITY == 2 && sizeof(T) > 1 ? 2 : 1, plain_kernel<T, Op>)                                      \
    CUDA_OPS_KERNEL(op##_##dtype##_vector, cuda_ops_vector, CUDA_OPS_THREADS, sizeof(T) == 1 ? 6 : 8,                  \
                    vector_kernel<T, Op>)                                                                              \
    CUDA_OPS_KERNEL(op##_##dtype##_rows, cuda_ops_strided, CUDA_OPS_ROW_THREADS,                                       \
                    sizeof(T) < 8    ? 8                                                                               \
                    : Op::ARITY == 2 ? CUDA_OPS_RESIDENT_ROWS_8                                                        \
                                     : 5,                                                                              \
                    rows_kernel<T, Op>)                                                                                \
    CUDA_OPS_KERNEL(op##_##dtype##_tiles, cuda_ops_strided, CUDA_OPS_THREADS, 4, tiles_kernel<T, Op>)                  \
    CUDA_OPS_KERNEL(op##_##dtype##_strided, cuda_ops_strided, CUDA_OPS_THREADS, 8, strided_kernel<T, Op, uint32_t>)    \
    CUDA_OPS_KERNEL(op##_##dtype##_strided64, cuda_ops_strided, CUDA_OPS_THREADS, 4, strided_kernel<T, Op, uint64_t>)

#define CUDA_OPS_ELEMENTWISE_FLOATS(op, Op)                                                                            \
    CUDA_OPS_ELEMENTWISE(op, f32, float, Op)                                                                           \
    CUDA_OPS_ELEMENTWISE(op, f64, double, Op)                                                                          \
    CUDA_OPS_ELEMENTWISE(op, f16, __half, Op)                                                                          \
    CUDA_OPS_ELEMENTWISE(op, bf16, __nv_bfloat16, Op)

/* Signed integers use the kernels of unsigned ones. */
#define CUDA_OPS_ELEMENTWISE_NUMBERS(op, Op)                                                                           \
    CUDA_OPS_ELEMENTWISE_FLOATS(op, Op)                                                                                \
    CUDA_OPS_ELEMENTWISE(op, u8, uint8_t, Op)                                                                          \
    CUDA_OPS_ELEMENTWISE(op, u16, uint16_t, Op)                                                                        \
    CUDA_OPS_ELEMENTWISE(op, u32, uint32_t, Op)                                                                        \
    CUDA_OPS_ELEMENTWISE(op, u64, uint64_t, Op)

#endif

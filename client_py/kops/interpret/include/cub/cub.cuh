// What kernels use most of CUB: reductions and scans of a block and of a warp, loads and stores of a block.
//
// Results are those of CUB; sums of floating point are added in the order of its shuffles within a warp. A block's
// temporary storage is used as on a GPU: using it again without a barrier is a race.
#ifndef KOPS_HOST_CUB_H
#define KOPS_HOST_CUB_H

#include "../cuda_on_host.h"

#include "../kops_host/cuda_std.h"

namespace cub
{

struct NullType {
};

struct Sum {
    template <typename T> KOPS_HOST T operator()(const T &a, const T &b) const
    {
        return a + b;
    }
};

struct Max {
    template <typename T> KOPS_HOST T operator()(const T &a, const T &b) const
    {
        return b > a ? b : a;
    }
};

struct Min {
    template <typename T> KOPS_HOST T operator()(const T &a, const T &b) const
    {
        return b < a ? b : a;
    }
};

enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockLoadAlgorithm {
    BLOCK_LOAD_DIRECT,
    BLOCK_LOAD_STRIPED,
    BLOCK_LOAD_VECTORIZE,
    BLOCK_LOAD_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};
enum BlockStoreAlgorithm {
    BLOCK_STORE_DIRECT,
    BLOCK_STORE_STRIPED,
    BLOCK_STORE_VECTORIZE,
    BLOCK_STORE_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED
};

template <int X, int Y, int Z> KOPS_HOST int kops_host_rank()
{
    return int((threadIdx.z * Y + threadIdx.y) * X + threadIdx.x);
}

template <int N, typename T, typename Op> KOPS_HOST T kops_host_fold(const T (&items)[N], Op op)
{
    T result = items[0];
    for (int i = 1; i < N; i++)
        result = op(result, items[i]);
    return result;
}

// One number as an array of one.
template <typename T> KOPS_HOST T (&kops_host_one(T &value))[1]
{
    return reinterpret_cast<T(&)[1]>(value);
}

// The value of another lane, of any size.
template <typename T> KOPS_HOST T kops_host_of_lane(unsigned mask, const T &value, int lane, const char *name)
{
    T result = value;
    for (size_t at = 0; at < sizeof(T); at += 8) {
        size_t part = sizeof(T) - at < 8 ? sizeof(T) - at : 8;
        unsigned long long bits = 0;
        __builtin_memcpy(&bits, reinterpret_cast<const char *>(&value) + at, part);
        bits = kops_host_collective(KOPS_HOST_SHUFFLE, mask, bits, lane, name, __builtin_FILE(), __builtin_LINE());
        __builtin_memcpy(reinterpret_cast<char *>(&result) + at, &bits, part);
    }
    return result;
}

// A part of N lanes of the warp, N a power of two.
template <int N> struct kops_host_part {
    int first = int(kops_host_lane()) & ~(N - 1), rank = int(kops_host_lane()) & (N - 1);
    unsigned mask = (N == 32 ? ~0u : (1u << (N & 31)) - 1) << first;
};

template <typename T, int N = 32, int = 0> class WarpReduce
{
    static_assert(N > 0 && N <= 32 && (N & (N - 1)) == 0, "the interpreter has parts of warps that are a power of two");

  public:
    struct TempStorage {
        char reserved;
    };

    KOPS_HOST explicit WarpReduce(TempStorage &)
    {
    }

    // The result is that of the first lane.
    template <typename Op> KOPS_HOST T Reduce(T input, Op op, int valid = N)
    {
        const kops_host_part<N> part;
        for (int step = 1; step < N; step *= 2) {
            int from = part.rank + step;
            T other = kops_host_of_lane(part.mask, input, from < N ? part.first + from : -1, "cub::WarpReduce");
            if (from < valid)
                input = op(input, other);
        }
        return input;
    }

    KOPS_HOST T Sum(T input, int valid = N)
    {
        return Reduce(input, cub::Sum(), valid);
    }

    KOPS_HOST T Max(T input, int valid = N)
    {
        return Reduce(input, cub::Max(), valid);
    }

    KOPS_HOST T Min(T input, int valid = N)
    {
        return Reduce(input, cub::Min(), valid);
    }
};

template <typename T, int N = 32, int = 0> class WarpScan
{
    static_assert(N > 0 && N <= 32 && (N & (N - 1)) == 0, "the interpreter has parts of warps that are a power of two");

    KOPS_HOST static T lane(T value, int rank)
    {
        const kops_host_part<N> part;
        return kops_host_of_lane(part.mask, value, rank < 0 ? -1 : part.first + rank, "cub::WarpScan");
    }

  public:
    struct TempStorage {
        char reserved;
    };

    KOPS_HOST explicit WarpScan(TempStorage &)
    {
    }

    template <typename Op> KOPS_HOST void InclusiveScan(T input, T &output, Op op)
    {
        const kops_host_part<N> part;
        for (int step = 1; step < N; step *= 2) {
            T other = lane(input, part.rank - step);
            if (part.rank >= step)
                input = op(other, input);
        }
        output = input;
    }

    template <typename Op> KOPS_HOST void InclusiveScan(T input, T &output, Op op, T &aggregate)
    {
        InclusiveScan(input, output, op);
        aggregate = lane(output, N - 1);
    }

    template <typename Op> KOPS_HOST void ExclusiveScan(T input, T &output, T initial, Op op)
    {
        T inclusive;
        InclusiveScan(input, inclusive, op);
        T before = lane(inclusive, kops_host_part<N>().rank - 1);
        output = kops_host_part<N>().rank ? op(initial, before) : initial;
    }

    template <typename Op> KOPS_HOST void ExclusiveScan(T input, T &output, T initial, Op op, T &aggregate)
    {
        T inclusive;
        InclusiveScan(input, inclusive, op, aggregate);
        ExclusiveScan(input, output, initial, op);
    }

    KOPS_HOST void InclusiveSum(T input, T &output)
    {
        InclusiveScan(input, output, cub::Sum());
    }

    KOPS_HOST void InclusiveSum(T input, T &output, T &aggregate)
    {
        InclusiveScan(input, output, cub::Sum(), aggregate);
    }

    KOPS_HOST void ExclusiveSum(T input, T &output)
    {
        ExclusiveScan(input, output, T(0), cub::Sum());
    }

    KOPS_HOST void ExclusiveSum(T input, T &output, T &aggregate)
    {
        ExclusiveScan(input, output, T(0), cub::Sum(), aggregate);
    }

    KOPS_HOST T Broadcast(T input, unsigned source)
    {
        return lane(input, int(source));
    }
};

template <typename T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1, int = 0>
class BlockReduce
{
  public:
    struct TempStorage {
        T warps[(X * Y * Z + 31) / 32];
    };

  private:
    TempStorage &storage;

  public:
    KOPS_HOST explicit BlockReduce(TempStorage &given) : storage(given)
    {
    }

    // The result is that of the first thread.
    template <typename Op> KOPS_HOST T Reduce(T input, Op op, int valid = X * Y * Z)
    {
        constexpr int threads = X * Y * Z;
        int rank = kops_host_rank<X, Y, Z>(), first = rank & ~31;
        unsigned mask = threads - first >= 32 ? ~0u : (1u << (threads - first)) - 1;
        for (int step = 1; step < 32; step *= 2) {
            int from = rank + step;
            bool inside = from < first + 32 && from < threads;
            T other = kops_host_of_lane(mask, input, inside ? from & 31 : -1, "cub::BlockReduce");
            if (inside && from < valid)
                input = op(input, other);
        }
        if (rank == first)
            storage.warps[rank / 32] = input;
        __syncthreads();
        for (int warp = 1; rank == 0 && warp * 32 < valid && warp * 32 < threads; warp++)
            input = op(input, storage.warps[warp]);
        return input;
    }

    template <typename Op, int N> KOPS_HOST T Reduce(T (&items)[N], Op op)
    {
        return Reduce(kops_host_fold(items, op), op);
    }

    KOPS_HOST T Sum(T input, int valid = X * Y * Z)
    {
        return Reduce(input, cub::Sum(), valid);
    }

    template <int N> KOPS_HOST T Sum(T (&items)[N])
    {
        return Reduce(items, cub::Sum());
    }
};

template <typename T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int Architecture = 0>
struct BlockScan {
    struct TempStorage {
        T before[X * Y * Z], total;
    };

  private:
    TempStorage &storage;

    // Each thread's value, and then what all threads before it make together; the first one has none.
    template <typename Op> KOPS_HOST T before(T value, Op op)
    {
        int rank = kops_host_rank<X, Y, Z>();
        storage.before[rank] = value;
        __syncthreads();
        if (rank == 0) {
            T sum = storage.before[0];
            for (int i = 1; i < X * Y * Z; i++) {
                T own = storage.before[i];
                storage.before[i] = sum;
                sum = op(sum, own);
            }
            storage.total = sum;
        }
        __syncthreads();
        return storage.before[rank];
    }

    // What `prefix` says of the sum of all, for all threads: the first one asks.
    template <typename Prefix> KOPS_HOST T initial_of(Prefix &prefix)
    {
        __syncthreads();
        int rank = kops_host_rank<X, Y, Z>();
        T given = rank < 32 ? T(prefix(storage.total)) : T();
        __syncthreads();
        if (rank == 0)
            storage.total = given;
        __syncthreads();
        return storage.total;
    }

    template <int N, typename Op>
    KOPS_HOST static void scan(const T (&input)[N], T (&output)[N], bool any, T sum, Op op, bool inclusive)
    {
        for (int i = 0; i < N; i++) {
            T own = input[i], next = any ? op(sum, own) : own;
            output[i] = inclusive ? next : sum;
            sum = next;
            any = true;
        }
    }

    template <int N, typename Op>
    KOPS_HOST void run(const T (&input)[N], T (&output)[N], const T *initial, Op op, T *aggregate, bool inclusive)
    {
        T sum = before(kops_host_fold(input, op), op);
        bool later = kops_host_rank<X, Y, Z>() > 0;
        if (initial)
            sum = later ? op(*initial, sum) : *initial;
        if (aggregate)
            *aggregate = storage.total;
        scan(input, output, initial || later, sum, op, inclusive);
    }

    template <int N, typename Op, typename Prefix>
    KOPS_HOST void run_with(const T (&input)[N], T (&output)[N], Op op, Prefix &prefix, bool inclusive)
    {
        T sum = before(kops_host_fold(input, op), op), initial = initial_of(prefix);
        scan(input, output, true, kops_host_rank<X, Y, Z>() ? op(initial, sum) : initial, op, inclusive);
    }

  public:
    KOPS_HOST explicit BlockScan(TempStorage &given) : storage(given)
    {
    }

    template <typename Op, int N> KOPS_HOST void InclusiveScan(T (&input)[N], T (&output)[N], Op op)
    {
        run(input, output, nullptr, op, nullptr, true);
    }

    template <typename Op, int N> KOPS_HOST void InclusiveScan(T (&input)[N], T (&output)[N], Op op, T &aggregate)
    {
        run(input, output, nullptr, op, &aggregate, true);
    }

    template <typename Op, int N> KOPS_HOST void ExclusiveScan(T (&input)[N], T (&output)[N], T initial, Op op)
    {
        run(input, output, &initial, op, nullptr, false);
    }

    template <typename Op, int N>
    KOPS_HOST void ExclusiveScan(T (&input)[N], T (&output)[N], T initial, Op op, T &aggregate)
    {
        run(input, output, &initial, op, &aggregate, false);
    }

    template <typename Op> KOPS_HOST void InclusiveScan(T input, T &output, Op op)
    {
        run(kops_host_one(input), kops_host_one(output), nullptr, op, nullptr, true);
    }

    template <typename Op> KOPS_HOST void InclusiveScan(T input, T &output, Op op, T &aggregate)
    {
        run(kops_host_one(input), kops_host_one(output), nullptr, op, &aggregate, true);
    }

    template <typename Op> KOPS_HOST void ExclusiveScan(T input, T &output, T initial, Op op)
    {
        run(kops_host_one(input), kops_host_one(output), &initial, op, nullptr, false);
    }

    template <typename Op> KOPS_HOST void ExclusiveScan(T input, T &output, T initial, Op op, T &aggregate)
    {
        run(kops_host_one(input), kops_host_one(output), &initial, op, &aggregate, false);
    }

#define KOPS_HOST_BLOCK_SUM(NAME, SCAN, INCLUSIVE, ...)                                                                \
    KOPS_HOST void NAME(T input, T &output)                                                                            \
    {                                                                                                                  \
        SCAN(input, output, __VA_ARGS__ cub::Sum());                                                                   \
    }                                                                                                                  \
    KOPS_HOST void NAME(T input, T &output, T &aggregate)                                                              \
    {                                                                                                                  \
        SCAN(input, output, __VA_ARGS__ cub::Sum(), aggregate);                                                        \
    }                                                                                                                  \
    template <typename Prefix> KOPS_HOST void NAME(T input, T &output, Prefix &prefix)                                 \
    {                                                                                                                  \
        run_with(kops_host_one(input), kops_host_one(output), cub::Sum(), prefix, INCLUSIVE);                          \
    }                                                                                                                  \
    template <int N> KOPS_HOST void NAME(T(&input)[N], T(&output)[N])                                                  \
    {                                                                                                                  \
        SCAN(input, output, __VA_ARGS__ cub::Sum());                                                                   \
    }                                                                                                                  \
    template <int N> KOPS_HOST void NAME(T(&input)[N], T(&output)[N], T &aggregate)                                    \
    {                                                                                                                  \
        SCAN(input, output, __VA_ARGS__ cub::Sum(), aggregate);                                                        \
    }                                                                                                                  \
    template <int N, typename Prefix> KOPS_HOST void NAME(T(&input)[N], T(&output)[N], Prefix &prefix)                 \
    {                                                                                                                  \
        run_with(input, output, cub::Sum(), prefix, INCLUSIVE);                                                        \
    }

    KOPS_HOST_BLOCK_SUM(InclusiveSum, InclusiveScan, true)
    KOPS_HOST_BLOCK_SUM(ExclusiveSum, ExclusiveScan, false, T(0), )

#undef KOPS_HOST_BLOCK_SUM
};

// Where a thread's item is in the block's: blocked, or striped.
template <int X, int Y, int Z, int N> KOPS_HOST int kops_host_place(int item, bool striped)
{
    int rank = kops_host_rank<X, Y, Z>();
    return striped ? item * X * Y * Z + rank : rank * N + item;
}

template <typename T, int X, int N, BlockLoadAlgorithm How = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1, int = 0>
class BlockLoad
{
  public:
    struct TempStorage {
        char reserved;
    };

    BlockLoad() = default;

    KOPS_HOST explicit BlockLoad(TempStorage &)
    {
    }

    template <typename From> KOPS_HOST void Load(From from, T (&items)[N])
    {
        for (int i = 0; i < N; i++)
            items[i] = from[kops_host_place<X, Y, Z, N>(i, How == BLOCK_LOAD_STRIPED)];
    }

    template <typename From> KOPS_HOST void Load(From from, T (&items)[N], int valid)
    {
        for (int i = 0; i < N; i++) {
            int at = kops_host_place<X, Y, Z, N>(i, How == BLOCK_LOAD_STRIPED);
            if (at < valid)
                items[i] = from[at];
        }
    }

    template <typename From, typename Rest> KOPS_HOST void Load(From from, T (&items)[N], int valid, Rest rest)
    {
        for (int i = 0; i < N; i++)
            items[i] = T(rest);
        Load(from, items, valid);
    }
};

template <typename T, int X, int N, BlockStoreAlgorithm How = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1, int = 0>
class BlockStore
{
  public:
    struct TempStorage {
        char reserved;
    };

    BlockStore() = default;

    KOPS_HOST explicit BlockStore(TempStorage &)
    {
    }

    template <typename To> KOPS_HOST void Store(To to, T (&items)[N], int valid = X * Y * Z * N)
    {
        for (int i = 0; i < N; i++) {
            int at = kops_host_place<X, Y, Z, N>(i, How == BLOCK_STORE_STRIPED);
            if (at < valid)
                to[at] = items[i];
        }
    }
};

} // namespace cub

#endif

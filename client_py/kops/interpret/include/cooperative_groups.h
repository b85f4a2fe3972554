// Groups of threads: the block, tiles of a warp, the threads of a warp that are active together, and the grid's
// indices.
#ifndef KOPS_HOST_COOPERATIVE_GROUPS_H
#define KOPS_HOST_COOPERATIVE_GROUPS_H

#include "cuda_on_host.h"

namespace cooperative_groups
{

class thread_block
{
  public:
    KOPS_HOST void sync(KOPS_HOST_PLACE) const
    {
        kops_host_barrier(0, "thread_block::sync", kops_file, kops_line);
    }

    KOPS_HOST static unsigned thread_rank()
    {
        return kops_host_thread_index();
    }

    KOPS_HOST static unsigned size()
    {
        return blockDim.x * blockDim.y * blockDim.z;
    }

    KOPS_HOST static unsigned num_threads()
    {
        return size();
    }

    KOPS_HOST static dim3 group_index()
    {
        return blockIdx;
    }

    KOPS_HOST static dim3 thread_index()
    {
        return threadIdx;
    }

    KOPS_HOST static dim3 group_dim()
    {
        return blockDim;
    }

    KOPS_HOST static dim3 dim_threads()
    {
        return blockDim;
    }
};

KOPS_HOST thread_block this_thread_block()
{
    return thread_block();
}

// What tiles of several warps need on the device for exchanging values.
template <unsigned MaxBlockSize = 1024> struct block_tile_memory {
    char reserved[16];
};

template <unsigned MaxBlockSize> KOPS_HOST thread_block this_thread_block(block_tile_memory<MaxBlockSize> &)
{
    return thread_block();
}

// Lanes of one warp, given as a mask. Values of any size are exchanged in parts.
class kops_host_exchange
{
  protected:
    unsigned lanes;

    KOPS_HOST explicit kops_host_exchange(unsigned mask) : lanes(mask)
    {
    }

    template <typename T>
    KOPS_HOST T exchange(T value, int lane, const char *name, const char *file, unsigned line) const
    {
        T result = value;
        char *to = reinterpret_cast<char *>(&result);
        const char *from = reinterpret_cast<const char *>(&value);
        for (size_t at = 0; at < sizeof(T); at += 8) {
            size_t part = sizeof(T) - at < 8 ? sizeof(T) - at : 8;
            unsigned long long bits = 0;
            __builtin_memcpy(&bits, from + at, part);
            bits = kops_host_collective(KOPS_HOST_SHUFFLE, lanes, bits, lane, name, file, line);
            __builtin_memcpy(to + at, &bits, part);
        }
        return result;
    }

    // The lane with a rank in the group, -1 for none.
    KOPS_HOST int lane_of(int rank) const
    {
        unsigned left = lanes;
        if (rank < 0 || rank >= __popc(left))
            return -1;
        for (; rank; rank--)
            left &= left - 1;
        return __ffs(int(left)) - 1;
    }

    // The bits of the group's lanes moved together.
    KOPS_HOST unsigned gather(unsigned mask) const
    {
        unsigned result = 0, rank = 0;
        for (unsigned left = lanes; left; left &= left - 1, rank++)
            result |= (mask >> (__ffs(int(left)) - 1) & 1u) << rank;
        return result;
    }
};

class kops_host_lanes : public kops_host_exchange
{
  protected:
    KOPS_HOST explicit kops_host_lanes(unsigned mask) : kops_host_exchange(mask)
    {
    }

  public:
    KOPS_HOST unsigned kops_host_mask() const
    {
        return lanes;
    }

    KOPS_HOST void sync(KOPS_HOST_PLACE) const
    {
        kops_host_collective(KOPS_HOST_SYNC, lanes, 0, -1, "group::sync", kops_file, kops_line);
    }

    KOPS_HOST unsigned thread_rank() const
    {
        return unsigned(__popc(lanes & ((1u << kops_host_lane()) - 1)));
    }

    KOPS_HOST unsigned size() const
    {
        return unsigned(__popc(lanes));
    }

    KOPS_HOST unsigned num_threads() const
    {
        return size();
    }

    template <typename T> KOPS_HOST T shfl(T value, int rank, KOPS_HOST_PLACE) const
    {
        return exchange(value, lane_of(rank), "group::shfl", kops_file, kops_line);
    }

    template <typename T> KOPS_HOST T shfl_up(T value, unsigned delta, KOPS_HOST_PLACE) const
    {
        return exchange(value, lane_of(int(thread_rank() - delta)), "group::shfl_up", kops_file, kops_line);
    }

    template <typename T> KOPS_HOST T shfl_down(T value, unsigned delta, KOPS_HOST_PLACE) const
    {
        return exchange(value, lane_of(int(thread_rank() + delta)), "group::shfl_down", kops_file, kops_line);
    }

    template <typename T> KOPS_HOST T shfl_xor(T value, unsigned bits, KOPS_HOST_PLACE) const
    {
        return exchange(value, lane_of(int(thread_rank() ^ bits)), "group::shfl_xor", kops_file, kops_line);
    }

    KOPS_HOST int any(int predicate, KOPS_HOST_PLACE) const
    {
        return __any_sync(lanes, predicate, kops_file, kops_line);
    }

    KOPS_HOST int all(int predicate, KOPS_HOST_PLACE) const
    {
        return __all_sync(lanes, predicate, kops_file, kops_line);
    }

    KOPS_HOST unsigned ballot(int predicate, KOPS_HOST_PLACE) const
    {
        return gather(__ballot_sync(lanes, predicate, kops_file, kops_line));
    }

    template <typename T> KOPS_HOST unsigned match_any(T value, KOPS_HOST_PLACE) const
    {
        return gather(__match_any_sync(lanes, value, kops_file, kops_line));
    }

    template <typename T> KOPS_HOST unsigned match_all(T value, int &same, KOPS_HOST_PLACE) const
    {
        return gather(__match_all_sync(lanes, value, &same, kops_file, kops_line));
    }
};

// A tile of N consecutive threads of the block: of one warp, or of several.
template <unsigned N, typename Parent = void, bool OfWarp = N <= 32> class thread_block_tile : public kops_host_lanes
{
    static_assert(N && (N & (N - 1)) == 0, "tiles have a power of two of threads");

  public:
    KOPS_HOST thread_block_tile()
        : kops_host_lanes((N == 32 ? ~0u : (1u << (N & 31)) - 1) << (kops_host_lane() & ~(N - 1)))
    {
    }

    // A tile that knows what it is a part of is also one that does not.
    template <typename Other, typename P = Parent, typename std::enable_if<std::is_void<P>::value, int>::type = 0>
    KOPS_HOST thread_block_tile(const thread_block_tile<N, Other> &) : thread_block_tile()
    {
    }

    KOPS_HOST static constexpr unsigned size()
    {
        return N;
    }

    KOPS_HOST static constexpr unsigned num_threads()
    {
        return N;
    }

    KOPS_HOST static unsigned thread_rank()
    {
        return kops_host_lane() & (N - 1);
    }

    KOPS_HOST static unsigned meta_group_rank()
    {
        return kops_host_thread_index() / N;
    }

    KOPS_HOST static unsigned meta_group_size()
    {
        return (thread_block::size() + N - 1) / N;
    }
};

template <unsigned N, typename Parent> class thread_block_tile<N, Parent, false>
{
    static_assert((N & (N - 1)) == 0, "tiles have a power of two of threads");

  public:
    thread_block_tile() = default;

    template <typename Other, typename P = Parent, typename std::enable_if<std::is_void<P>::value, int>::type = 0>
    KOPS_HOST thread_block_tile(const thread_block_tile<N, Other, false> &)
    {
    }

    KOPS_HOST void sync(KOPS_HOST_PLACE) const
    {
        kops_host_exchange_in_tile(N, -1, 0, "tile::sync", kops_file, kops_line);
    }

    KOPS_HOST static constexpr unsigned size()
    {
        return N;
    }

    KOPS_HOST static constexpr unsigned num_threads()
    {
        return N;
    }

    KOPS_HOST static unsigned thread_rank()
    {
        return kops_host_thread_index() & (N - 1);
    }

    KOPS_HOST static unsigned meta_group_rank()
    {
        return kops_host_thread_index() / N;
    }

    KOPS_HOST static unsigned meta_group_size()
    {
        return (thread_block::size() + N - 1) / N;
    }

    template <typename T> KOPS_HOST T shfl(T value, unsigned rank, KOPS_HOST_PLACE) const
    {
        return kops_host_value_of<T>(kops_host_exchange_in_tile(N, int(rank & (N - 1)), kops_host_bits_of(value),
                                                                "tile::shfl", kops_file, kops_line));
    }
};

class coalesced_group : public kops_host_lanes
{
  public:
    KOPS_HOST explicit coalesced_group(unsigned mask) : kops_host_lanes(mask)
    {
    }
};

KOPS_HOST coalesced_group coalesced_threads(KOPS_HOST_PLACE)
{
    return coalesced_group(__activemask(kops_file, kops_line));
}

// The lanes of a group that give the same label.
template <typename T>
KOPS_HOST coalesced_group labeled_partition(const kops_host_lanes &group, T label, KOPS_HOST_PLACE)
{
    return coalesced_group(__match_any_sync(group.kops_host_mask(), label, kops_file, kops_line));
}

KOPS_HOST coalesced_group binary_partition(const kops_host_lanes &group, bool label, KOPS_HOST_PLACE)
{
    return labeled_partition(group, int(label), kops_file, kops_line);
}

template <unsigned N, typename Parent> KOPS_HOST thread_block_tile<N, Parent> tiled_partition(const Parent &)
{
    return thread_block_tile<N, Parent>();
}

// Blocks run one after another: only a grid of one block can wait for itself.
class grid_group
{
  public:
    KOPS_HOST void sync(KOPS_HOST_PLACE) const
    {
        if (num_blocks() != 1)
            kops_host_unsupported("grid_group::sync needs blocks that run at the same time", kops_file, kops_line);
        kops_host_barrier(0, "grid_group::sync", kops_file, kops_line);
    }

    KOPS_HOST bool is_valid() const
    {
        return num_blocks() == 1;
    }

    KOPS_HOST static unsigned long long num_blocks()
    {
        return (unsigned long long)gridDim.x * gridDim.y * gridDim.z;
    }

    KOPS_HOST static unsigned long long block_rank()
    {
        return ((unsigned long long)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    }

    KOPS_HOST static unsigned long long thread_rank()
    {
        return block_rank() * thread_block::size() + thread_block::thread_rank();
    }

    KOPS_HOST static unsigned long long size()
    {
        return num_blocks() * thread_block::size();
    }

    KOPS_HOST static unsigned long long num_threads()
    {
        return size();
    }
};

KOPS_HOST grid_group this_grid()
{
    return grid_group();
}

template <typename Group> KOPS_HOST void sync(const Group &group, KOPS_HOST_PLACE)
{
    group.sync(kops_file, kops_line);
}

} // namespace cooperative_groups

#endif

// Barriers, votes, shuffles, matches and reductions of a warp.
#ifndef KOPS_HOST_SYNC_H
#define KOPS_HOST_SYNC_H

KOPS_HOST void __syncthreads(KOPS_HOST_PLACE)
{
    kops_host_barrier(0, "__syncthreads", kops_file, kops_line);
}

KOPS_HOST int __syncthreads_count(int predicate, KOPS_HOST_PLACE)
{
    return int(kops_host_barrier(predicate != 0, "__syncthreads_count", kops_file, kops_line));
}

KOPS_HOST int __syncthreads_or(int predicate, KOPS_HOST_PLACE)
{
    return kops_host_barrier(predicate != 0, "__syncthreads_or", kops_file, kops_line) != 0;
}

KOPS_HOST int __syncthreads_and(int predicate, KOPS_HOST_PLACE)
{
    return kops_host_barrier(predicate == 0, "__syncthreads_and", kops_file, kops_line) == 0;
}

KOPS_HOST void __syncwarp(unsigned mask = 0xffffffffu, KOPS_HOST_PLACE)
{
    kops_host_collective(KOPS_HOST_SYNC, mask, 0, -1, "__syncwarp", kops_file, kops_line);
}

KOPS_HOST void __threadfence()
{
    __asm__ volatile("" ::: "memory");
}

KOPS_HOST void __threadfence_block()
{
    __asm__ volatile("" ::: "memory");
}

KOPS_HOST void __threadfence_system()
{
    __asm__ volatile("" ::: "memory");
}

KOPS_HOST unsigned __activemask(KOPS_HOST_PLACE)
{
    return unsigned(kops_host_collective(KOPS_HOST_ACTIVE, 0, 0, -1, "__activemask", kops_file, kops_line));
}

KOPS_HOST unsigned __ballot_sync(unsigned mask, int predicate, KOPS_HOST_PLACE)
{
    return unsigned(
        kops_host_collective(KOPS_HOST_BALLOT, mask, predicate != 0, -1, "__ballot_sync", kops_file, kops_line));
}

KOPS_HOST int __any_sync(unsigned mask, int predicate, KOPS_HOST_PLACE)
{
    return kops_host_collective(KOPS_HOST_BALLOT, mask, predicate != 0, -1, "__any_sync", kops_file, kops_line) != 0;
}

KOPS_HOST int __all_sync(unsigned mask, int predicate, KOPS_HOST_PLACE)
{
    return kops_host_collective(KOPS_HOST_BALLOT, mask, predicate == 0, -1, "__all_sync", kops_file, kops_line) == 0;
}

template <typename T> KOPS_HOST unsigned long long kops_host_bits_of(T value)
{
    static_assert(sizeof(T) <= 8, "a lane exchanges at most 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    return bits;
}

template <typename T> KOPS_HOST T kops_host_value_of(unsigned long long bits)
{
    T value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

template <typename T> KOPS_HOST unsigned __match_any_sync(unsigned mask, T value, KOPS_HOST_PLACE)
{
    return unsigned(kops_host_collective(KOPS_HOST_MATCH_ANY, mask, kops_host_bits_of(value), -1, "__match_any_sync",
                                         kops_file, kops_line));
}

template <typename T> KOPS_HOST unsigned __match_all_sync(unsigned mask, T value, int *all, KOPS_HOST_PLACE)
{
    unsigned lanes = unsigned(kops_host_collective(KOPS_HOST_MATCH_ALL, mask, kops_host_bits_of(value), -1,
                                                   "__match_all_sync", kops_file, kops_line));
    *all = lanes != 0;
    return lanes;
}

// The lane that a lane reads: within its part of `width` lanes, or -1 for its own value.
KOPS_HOST int kops_host_source(int lane, int from, int width)
{
    int first = lane & ~(width - 1);
    return from < first || from >= first + width ? -1 : from;
}

template <typename T>
KOPS_HOST T kops_host_shuffle(unsigned mask, T value, int source, const char *name, const char *file, unsigned line)
{
    return kops_host_value_of<T>(
        kops_host_collective(KOPS_HOST_SHUFFLE, mask, kops_host_bits_of(value), source, name, file, line));
}

template <typename T> KOPS_HOST T __shfl_sync(unsigned mask, T value, int source, int width = 32, KOPS_HOST_PLACE)
{
    int lane = int(kops_host_lane());
    return kops_host_shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), "__shfl_sync", kops_file,
                             kops_line);
}

template <typename T>
KOPS_HOST T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, KOPS_HOST_PLACE)
{
    int lane = int(kops_host_lane());
    return kops_host_shuffle(mask, value, kops_host_source(lane, lane - int(delta), width), "__shfl_up_sync", kops_file,
                             kops_line);
}

template <typename T>
KOPS_HOST T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, KOPS_HOST_PLACE)
{
    int lane = int(kops_host_lane());
    return kops_host_shuffle(mask, value, kops_host_source(lane, lane + int(delta), width), "__shfl_down_sync",
                             kops_file, kops_line);
}

template <typename T> KOPS_HOST T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, KOPS_HOST_PLACE)
{
    // A partner in a later part of the warp is out of reach, one in an earlier part is not.
    int lane = int(kops_host_lane()), from = lane ^ bits;
    int source = from < (lane & ~(width - 1)) + width && from < 32 ? from : -1;
    return kops_host_shuffle(mask, value, source, "__shfl_xor_sync", kops_file, kops_line);
}

#define KOPS_HOST_REDUCE(NAME, T, WIDE, OP)                                                                            \
    KOPS_HOST T NAME(unsigned mask, T value, KOPS_HOST_PLACE)                                                          \
    {                                                                                                                  \
        return T(kops_host_collective(OP, mask, (unsigned long long)(WIDE)value, -1, #NAME, kops_file, kops_line));    \
    }

KOPS_HOST_REDUCE(__reduce_add_sync, unsigned, unsigned long long, KOPS_HOST_ADD_SIGNED)
KOPS_HOST_REDUCE(__reduce_add_sync, int, long long, KOPS_HOST_ADD_SIGNED)
KOPS_HOST_REDUCE(__reduce_min_sync, unsigned, unsigned long long, KOPS_HOST_MIN_UNSIGNED)
KOPS_HOST_REDUCE(__reduce_min_sync, int, long long, KOPS_HOST_MIN_SIGNED)
KOPS_HOST_REDUCE(__reduce_max_sync, unsigned, unsigned long long, KOPS_HOST_MAX_UNSIGNED)
KOPS_HOST_REDUCE(__reduce_max_sync, int, long long, KOPS_HOST_MAX_SIGNED)
KOPS_HOST_REDUCE(__reduce_and_sync, unsigned, unsigned long long, KOPS_HOST_AND)
KOPS_HOST_REDUCE(__reduce_or_sync, unsigned, unsigned long long, KOPS_HOST_OR)
KOPS_HOST_REDUCE(__reduce_xor_sync, unsigned, unsigned long long, KOPS_HOST_XOR)

#undef KOPS_HOST_REDUCE

KOPS_HOST void __trap(KOPS_HOST_PLACE)
{
    kops_host_trap(nullptr, kops_file, kops_line);
}

KOPS_HOST void __brkpt()
{
}

KOPS_HOST void __nanosleep(unsigned)
{
}

KOPS_HOST long long clock64()
{
    return kops_host_clock();
}

#endif

// Scans over a group of lanes.
#ifndef KOPS_HOST_COOPERATIVE_GROUPS_SCAN_H
#define KOPS_HOST_COOPERATIVE_GROUPS_SCAN_H

#include "reduce.h"

namespace cooperative_groups
{

template <typename Group, typename T, typename F>
KOPS_HOST T inclusive_scan(const Group &group, T value, F function, KOPS_HOST_PLACE)
{
    for (unsigned delta = 1; delta < group.size(); delta *= 2) {
        T other = group.shfl_up(value, delta, kops_file, kops_line);
        if (group.thread_rank() >= delta)
            value = function(other, value);
    }
    return value;
}

template <typename Group, typename T> KOPS_HOST T inclusive_scan(const Group &group, T value, KOPS_HOST_PLACE)
{
    return inclusive_scan(group, value, plus<T>(), kops_file, kops_line);
}

template <typename Group, typename T, typename F>
KOPS_HOST T exclusive_scan(const Group &group, T value, F function, KOPS_HOST_PLACE)
{
    T until = inclusive_scan(group, value, function, kops_file, kops_line);
    T before = group.shfl_up(until, 1, kops_file, kops_line);
    return group.thread_rank() ? before : T();
}

template <typename Group, typename T> KOPS_HOST T exclusive_scan(const Group &group, T value, KOPS_HOST_PLACE)
{
    return exclusive_scan(group, value, plus<T>(), kops_file, kops_line);
}

} // namespace cooperative_groups

#endif

// Copies by a group: each thread copies its part, waiting is a barrier of the group.
#ifndef KOPS_HOST_COOPERATIVE_GROUPS_MEMCPY_ASYNC_H
#define KOPS_HOST_COOPERATIVE_GROUPS_MEMCPY_ASYNC_H

#include "cooperative_groups.h"

namespace cooperative_groups
{

template <typename Group, typename T>
KOPS_HOST void memcpy_async(const Group &group, T *to, const T *from, size_t bytes)
{
    for (size_t i = group.thread_rank(); i < bytes / sizeof(T); i += group.size())
        kops_host_copy(to + i, from + i, sizeof(T), 0, nullptr);
    kops_host_copies_commit();
}

template <typename Group> KOPS_HOST void wait(const Group &group, KOPS_HOST_PLACE)
{
    kops_host_copies_wait(0);
    group.sync(kops_file, kops_line);
}

template <unsigned N, typename Group> KOPS_HOST void wait_prior(const Group &group, KOPS_HOST_PLACE)
{
    kops_host_copies_wait(N);
    group.sync(kops_file, kops_line);
}

} // namespace cooperative_groups

#endif

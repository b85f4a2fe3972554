// Reductions over a group of lanes: each lane gets the result.
#ifndef KOPS_HOST_COOPERATIVE_GROUPS_REDUCE_H
#define KOPS_HOST_COOPERATIVE_GROUPS_REDUCE_H

#include "cooperative_groups.h"

namespace cooperative_groups
{

#define KOPS_HOST_FUNCTION(NAME, VALUE)                                                                                \
    template <typename T = void> struct NAME {                                                                         \
        KOPS_HOST T operator()(T a, T b) const                                                                         \
        {                                                                                                              \
            return T(VALUE);                                                                                           \
        }                                                                                                              \
    };                                                                                                                 \
    template <> struct NAME<void> {                                                                                    \
        template <typename T> KOPS_HOST T operator()(T a, T b) const                                                   \
        {                                                                                                              \
            return T(VALUE);                                                                                           \
        }                                                                                                              \
    };

KOPS_HOST_FUNCTION(plus, a + b)
KOPS_HOST_FUNCTION(less, b < a ? b : a)
KOPS_HOST_FUNCTION(greater, a < b ? b : a)
KOPS_HOST_FUNCTION(bit_and, a &b)
KOPS_HOST_FUNCTION(bit_or, a | b)
KOPS_HOST_FUNCTION(bit_xor, a ^ b)

#undef KOPS_HOST_FUNCTION

template <typename Group, typename T, typename F>
KOPS_HOST T reduce(const Group &group, T value, F function, KOPS_HOST_PLACE)
{
    T result = group.shfl(value, 0, kops_file, kops_line);
    for (unsigned i = 1; i < group.size(); i++)
        result = function(result, group.shfl(value, int(i), kops_file, kops_line));
    return result;
}

} // namespace cooperative_groups

#endif

/* How much memory the process may have: the machine's, or the limit of its control groups. Thread: any that may block,
 * as files of the kernel are read. */
#ifndef KOPS_UTIL_HOST_MEMORY_H
#define KOPS_UTIL_HOST_MEMORY_H

#include <stdint.h>

/* Bytes of the machine, or of the smallest limit of the process's control groups and those above, where that is less.
 */
uint64_t host_memory_total(void);

/* Bytes that could be had now without swapping: of the machine, or below the limit that is nearest. UINT64_MAX: the
 * kernel does not say. */
uint64_t host_memory_available(void);

/* Bytes of shared memory whose pages this process has mapped and touched: once for each mapping. 0: the kernel does not
 * say. */
uint64_t host_memory_resident(void);

/* Of the control groups named in `groups` (a file like /proc/self/cgroup), with their files below `root`: the smallest
 * limit and the least free memory below one. UINT64_MAX: there is no limit. */
struct host_memory_limits {
    uint64_t limit, available;
};
struct host_memory_limits host_memory_limits(const char *groups, const char *root);

#endif

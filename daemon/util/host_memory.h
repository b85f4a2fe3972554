/* Memory that the process may have: the machine's, or the limit of its control groups. Reads files of the kernel.
 * Thread: any that may block. */
#ifndef KOPS_UTIL_HOST_MEMORY_H
#define KOPS_UTIL_HOST_MEMORY_H

#include <stdint.h>

/* Returns the machine's memory, or the smallest limit of the process's control groups and those above, where that is
 * less. */
uint64_t host_memory_total(void);

/* Returns the bytes available without swapping: the machine's, or those below the nearest limit. UINT64_MAX: the kernel
 * does not tell. */
uint64_t host_memory_available(void);

/* Returns the bytes of shared memory whose pages this process has mapped and touched, once for each mapping. 0: the
 * kernel does not tell. */
uint64_t host_memory_resident(void);

/* The smallest limit, and the least free memory below a limit, of the control groups named in `groups` (a file like
 * /proc/self/cgroup), with their files below `root`. UINT64_MAX: there is no limit. */
struct host_memory_limits {
    uint64_t limit, available;
};
struct host_memory_limits host_memory_limits(const char *groups, const char *root);

#endif

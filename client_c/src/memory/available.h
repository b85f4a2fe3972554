/* Memory that this process may still take, read before shared memory is made. Thread: any.
 *
 * The result is the smallest of four figures: the machine's MemAvailable; the free part of the process's memory control
 * group and of each group above it; RLIMIT_AS; RLIMIT_FSIZE, which also bounds memfds. Control groups may be of version
 * 1 or 2. File pages that the kernel can drop count as free. A sixteenth of the first two, 1 GiB at most, is left to
 * other processes. A figure that cannot be read bounds nothing.
 *
 * The Python package uses these functions, too, and has the test cases: client_py/tests/available.json. */
#ifndef KOPS_CLIENT_AVAILABLE_H
#define KOPS_CLIENT_AVAILABLE_H

#include <kops/kops.h>

/* `bytes`, and in `of` the name of the bounding thing, for messages. */
struct memory_bound {
    uint64_t size;
    char of[256];
};

/* The least bound, exact where it is below `enough`; UINT64_MAX where there is none. `root` is where /proc and /sys
 * are, "" but in tests; the limits are soft ones, UINT64_MAX for none. */
void memory_bound(const char *root, uint64_t enough, uint64_t address_space, uint64_t file_size,
                  struct memory_bound *ret);

/* Fails with out_of_memory, and the details `asked` and `available`, where `size` bytes of shared memory are not
 * available. Sizes below 1 MiB are granted without a look. */
enum kops_code memory_check(uint64_t size, struct kops_error *e);

#endif

/* The binaries of the daemon's own kernels that this process has, by name, and their functions in its contexts. One set
 * a process: daemons whose layouts are ours hand out kernels that compute the same. Thread: any. */
#ifndef KOPS_CLIENT_HERE_IMAGE_H
#define KOPS_CLIENT_HERE_IMAGE_H

#include "code.h"
#include "ops/launch.h"

/* unsupported unless the daemon's kernels take parameters as this library lays them out. */
enum kops_code here_image_check(uint64_t layout, struct kops_error *e);

/* Keeps the first `size` bytes of the file, whose layout was checked. Errors: bad_argument (no binary has that name),
 * no_memory. */
enum kops_code here_image_keep(const char *name, int fd, size_t size, struct kops_error *e);

/* Finds the kernel in the calling thread's current context. `symbol` is static, as those of struct cuda_launch.
 * *ret_missing: the name of the binary that has to be kept first; NULL: *ret is filled. Errors: those of
 * here_code_function(). */
enum kops_code here_image_function(const struct cuda_driver *d, cuda_context context, const char *symbol,
                                   struct here_function *ret, const char **ret_missing, struct kops_error *e);

/* The least level of devices that have the kernel. Where a device lacks it all the same, the daemon's binaries have no
 * code of that level: here_image_function() fails with unsupported. */
enum cuda_ops_level here_image_level(const char *symbol);

#endif

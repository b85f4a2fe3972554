/* Trees of headers that an administrator has installed for all sources, beside the toolkit's (kernels.include_extra).
 *
 * Thread: any; it reads whole trees, so not for the loop once it runs. */
#ifndef KOPS_COMPILE_INCLUDE_TREE_H
#define KOPS_COMPILE_INCLUDE_TREE_H

#include <limits.h>
#include <stdint.h>

#include "util/error.h"

enum { INCLUDE_TREES_MAX = 8, INCLUDE_TREE_ENTRIES_MAX = 1 << 16 };

/* Fills ret_path with the folder's own path, without links. Refuses what people other than root and the daemon's user
 * could change: then they could change others' kernels. Error: invalid_argument. */
int include_tree_check(const char *path, char ret_path[PATH_MAX], struct error *e);

/* A digest of names and contents, the same on every machine that has the same headers. */
int include_tree_digest(const char *path, uint64_t *ret_digest, struct error *e);

/* Changes with any change of the tree, and is cheap: of names, inodes, sizes and times. */
uint64_t include_tree_stamp(const char *path);

/* Of several trees in this order, begun with 0. */
static inline uint64_t include_tree_mix(uint64_t all, uint64_t one)
{
    return (all ^ one) * 0x100000001b3U;
}

#endif

/* Python packages beside this program. Where kopsd is part of an installed package (SITE/kops/bin/kopsd), NVIDIA's
 * packages in the same folder SITE bring the libraries that a CUDA toolkit has elsewhere. Thread: any. */
#ifndef KOPS_UTIL_PACKAGES_H
#define KOPS_UTIL_PACKAGES_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* The folder of NVIDIA's packages. False: this program is in no package, or none of them is there. */
bool packages_folder(char path[PATH_MAX]);

/* From now on the folder is named so: for a process whose user cannot go the usual way. Before threads; `path` stays.
 */
void packages_lie_at(const char *path);

/* The first library of the names, in their order, that one of the packages has. */
bool packages_find_library(const char *const *names, size_t n, char path[PATH_MAX]);

#endif

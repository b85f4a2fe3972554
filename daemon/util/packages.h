/* Python packages beside this program. Where kopsd is part of an installed package (SITE/kops/bin/kopsd), NVIDIA's
 * packages in the same folder SITE bring the libraries that a CUDA toolkit has elsewhere. Thread: any. */
#ifndef KOPS_UTIL_PACKAGES_H
#define KOPS_UTIL_PACKAGES_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* Finds the folder of NVIDIA's packages. False: this program is in no package, or there are none. */
bool packages_folder(char path[PATH_MAX]);

/* Sets another path to the folder, for a process whose user cannot go the usual way. Call it before threads start;
 * `path` must stay. */
void packages_lie_at(const char *path);

/* Finds the first library of the names, in their order, in the packages. */
bool packages_find_library(const char *const *names, size_t n, char path[PATH_MAX]);

#endif

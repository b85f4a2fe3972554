/* CUPTI's library, which times/ and counters/ share: loaded when it is first needed, and kept. Thread: any. */
#ifndef KOPS_CUDA_CUPTI_LIBRARY_H
#define KOPS_CUDA_CUPTI_LIBRARY_H

#include <stddef.h>

/* Call before the first cupti_library(). `setting`: a path, "off", or NULL for the usual places; stays valid. `driver`:
 * the path of the driver's library where one was set, or NULL. CUPTI finds the driver by itself, so with a set driver
 * CUPTI is used only if it was set, too. */
void cupti_choose(const char *setting, const char *driver);

/* Returns the handle of dlopen(). NULL: `why` has the reason. */
void *cupti_library(char *why, size_t why_size);

#endif

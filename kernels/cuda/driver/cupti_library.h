/* CUPTI's library, which times/ and counters/ share: loaded when it is first needed, and kept. Thread: any. */
#ifndef KOPS_CUDA_CUPTI_LIBRARY_H
#define KOPS_CUDA_CUPTI_LIBRARY_H

#include <stddef.h>

/* `setting`: a path, "off", or NULL for the usual places. `driver`: a library of the driver that was named, or NULL.
 * CUPTI finds the driver by itself, so beside a named driver only a named CUPTI is used. The text stays. Before the
 * first cupti_library(). */
void cupti_choose(const char *setting, const char *driver);

/* From dlopen(). NULL: `why` says why not. */
void *cupti_library(char *why, size_t why_size);

#endif

/* CUPTI's library, of which two rooms use different parts: times/ and counters/. It is loaded when it is first needed,
 * and stays. Thread: any. */
#ifndef KOPS_CUDA_CUPTI_LIBRARY_H
#define KOPS_CUDA_CUPTI_LIBRARY_H

#include <stddef.h>

/* `setting`: a path, "off", or NULL: where the loader, toolkits and Python's packages have it. `driver`: a library of
 * the driver that was named, or NULL. CUPTI finds the driver by itself, so beside a named one it is used only where it
 * is named too. The text stays. Before the first cupti_library(). */
void cupti_choose(const char *setting, const char *driver);

/* What dlopen() gave. NULL: `why` says why there is none, NUL-terminated. */
void *cupti_library(char *why, size_t why_size);

#endif

/* Lists of system calls that a process can make, or cannot, by seccomp.
 *
 * Thread: any, before calls_enter(). */
#ifndef KOPS_SANDBOX_CALLS_H
#define KOPS_SANDBOX_CALLS_H

#include <seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/error.h"

/* Tells whether this kernel has filters. */
bool calls_available(void);

/* Makes a filter. `otherwise`: action for calls in none of its lists. NULL: no memory. */
scmp_filter_ctx calls_new(uint32_t otherwise);

/* Adds calls, whatever their arguments are. A call that this machine does not have is no error. Returns 0, or a
 * negative errno, as libseccomp's functions do. */
int calls_add(scmp_filter_ctx filter, uint32_t action, const int *calls, size_t n);

/* Calls of a process that reads files and computes: files (limited by Landlock), memory (without mapping or protecting
 * for execution), the process itself, time. */
extern const int calls_common[];
extern const size_t calls_common_n;

/* Applies the filter to this thread and threads that it starts; `all`: also to the process's other threads. Ends the
 * filter, also where that fails. `r` is the result of making the filter: where it is negative, the filter is only
 * ended. */
int calls_enter(scmp_filter_ctx filter, int r, bool all, struct error *e);

#endif

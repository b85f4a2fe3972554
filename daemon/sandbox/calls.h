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

/* Whether this kernel has filters. */
bool calls_available(void);

/* A filter in the making. `otherwise`: what becomes of calls that are in none of its lists. NULL: no memory. */
scmp_filter_ctx calls_new(uint32_t otherwise);

/* Whatever their arguments are. A call that this machine does not have is no error. Returns 0, or a negative errno, as
 * do libseccomp's own functions. */
int calls_add(scmp_filter_ctx filter, uint32_t action, const int *calls, size_t n);

/* Calls that a process needs which reads files and computes: files (Landlock says which ones), memory, without mapping
 * or protecting for execution, the process itself, time. */
extern const int calls_common[];
extern const size_t calls_common_n;

/* For this thread and those that it starts; `all`: also for the process's other threads. Ends the filter, also where it
 * fails. `r` is what became of its making: negative, and it only ends. */
int calls_enter(scmp_filter_ctx filter, int r, bool all, struct error *e);

#endif

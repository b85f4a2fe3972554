/* What is said where the system has no more of something for the daemon. Thread: any. */
#ifndef KOPS_UTIL_SHORTAGE_H
#define KOPS_UTIL_SHORTAGE_H

#include "util/error.h"

/* How many descriptors this process may have. */
uint64_t shortage_descriptors_max(void);

/* `what` could not be made, and `cause` is the errno of it: quota_exceeded with its details where descriptors are
 * lacking, else out_of_memory. Returns -1. */
int error_shortage(struct error *e, int cause, const char *what);

#endif

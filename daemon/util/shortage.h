/* Errors for a shortage of the system's resources. Thread: any. */
#ifndef KOPS_UTIL_SHORTAGE_H
#define KOPS_UTIL_SHORTAGE_H

#include "util/error.h"

/* Returns the most descriptors that this process may have. */
uint64_t shortage_descriptors_max(void);

/* Sets an error that `what` could not be made. `cause` is the errno: quota_exceeded with its details for a lack of
 * descriptors, else out_of_memory. Returns -1. */
int error_shortage(struct error *e, int cause, const char *what);

#endif

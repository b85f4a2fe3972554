/* This process's device memory as the daemon can open it: IPC handles where the driver gives any, else descriptors of
 * virtual memory's allocations (PyTorch's expandable segments), else those of an exportable pool (cudaMallocAsync). */
#ifndef KOPS_CLIENT_EXPORT_H
#define KOPS_CLIENT_EXPORT_H

#include "buffer.h"

/* Describes the memory that holds the pointer, in a buffer that is not registered yet. */
enum kops_code export_memory(const struct cuda_driver *d, cuda_pointer pointer, struct kops_buffer *ret,
                             struct kops_error *e);

/* A descriptor, the caller's, of the allocation that is mapped at an address. */
enum kops_code export_chunk(cuda_pointer address, int *ret_fd, struct kops_error *e);

#endif

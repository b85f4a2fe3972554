/* A tensor and its memory: shared, or the device's with a copy here. */
#ifndef KOPS_CTL_OPERAND_H
#define KOPS_CTL_OPERAND_H

#include "base/ctl.h"

struct operand {
    struct kops_tensor tensor; /* contiguous */
    kops_buffer *buffer;       /* NULL: empty */
    size_t bytes;
    void *host, *copy; /* host: the mapping, or the copy, which is ours to free */
};

/* Fills `bytes` from the tensor's shape; false: too many elements. */
bool operand_measure(struct operand *o);

/* Makes zeroed memory for it; `device` of device memory. Prints the error. operand_free() in any case. */
enum ctl_exit operand_make(struct ctl *ctl, struct operand *o, bool device_memory, const char *device);
void operand_free(struct operand *o);

/* Between the copy and device memory; nothing to do for shared memory. */
enum kops_code operand_push(struct operand *o, struct kops_error *error);
enum kops_code operand_pull(struct operand *o, struct kops_error *error);

#endif

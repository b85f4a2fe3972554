/* Operands that the daemon owns: a program needs no GPU context of its own to measure the daemon. */
#ifndef KOPS_BENCH_OPERANDS_H
#define KOPS_BENCH_OPERANDS_H

#include <kops/kops.h>

struct operands {
    kops_buffer *buffers[3]; /* owned */
    struct kops_tensor tensors[3];
    struct kops_request request; /* points into the struct: do not move it */
};

/* Two inputs and an output of `op` on the daemon's default device, of that rank and shape. 0, or -1 with a message.
 */
int operands_make(struct operands *operands, kops_client *client, const char *op, enum kops_dtype dtype, unsigned rank,
                  const int64_t *shape);
void operands_release(struct operands *operands);

#endif

/* Copies of a step's operands in the device's memory, which keep the operands' layout, alignment and overlaps. Thread:
 * any; may block. */
#ifndef KOPS_CUDA_COPIES_H
#define KOPS_CUDA_COPIES_H

#include "driver/device.h"

/* Of all copies together, those that outputs are restored from included. */
#define COPIES_BYTES_MAX (UINT64_C(8) << 30)

struct cuda_copy {
    uint32_t memory; /* of the operands */
    uint64_t start, end;
    bool read, written;
    CUdeviceptr allocation, work, master; /* master: of one that is read and written; 0: none */
};

struct cuda_copies { /* all zero: none */
    unsigned n;
    struct cuda_copy of[STEP_MAX_OPERANDS];
    uint64_t bytes;
};

/* Makes the copies, and fills `addresses` with where the operands are there. `d` has access to their memory. After a
 * failure they are to be freed all the same. */
int cuda_copies_make(struct cuda_copies *c, const struct cuda_queue *q, const struct step *step,
                     uint64_t addresses[STEP_MAX_OPERANDS], struct error *e);
/* Enqueues what gives operands that are read and written the bytes again that they had. Without any it does nothing. */
int cuda_copies_restore(const struct cuda_copies *c, const struct cuda_queue *q, struct error *e);
void cuda_copies_free(struct cuda_copies *c, const struct cuda_queue *q);

#endif

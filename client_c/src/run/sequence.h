/* A sequence of the public structs on its way. Lock held. */
#ifndef KOPS_CLIENT_SEQUENCE_H
#define KOPS_CLIENT_SEQUENCE_H

#include "jobs/job.h"

struct sequence {
    const struct kops_sequence *sequence;
    struct native_tensor *tensors; /* owned */
    uint64_t *kernels;             /* ids, one a step; owned, NULL where no step launches any */
    uint32_t generation;           /* of the connection that it was resolved for last */
    struct wire_sequence wire;
    struct job job;
};

/* Checks it; `options` may be NULL. On success sequence_end() frees its lists. */
enum kops_code sequence_begin(struct sequence *s, const struct kops_client *c, const struct kops_sequence *sequence,
                              const struct kops_options *options, struct kops_error *e);
void sequence_end(struct sequence *s);

/* Whether it does no harm when it runs twice: ops of the daemon alone, and none of them reads what one of them writes.
 * `tensors` are in place of the sequence's own. */
bool sequence_is_safe(const struct kops_sequence *s, const struct kops_tensor *tensors);

#endif

/* Putting work of any form on a CUDA stream. Lock held; may drop it while it waits. */
#ifndef KOPS_CLIENT_ENQUEUE_H
#define KOPS_CLIENT_ENQUEUE_H

#include "job.h"

/* Refuses options that an ordered call cannot have. */
enum kops_code enqueue_check(const struct kops_options *options, struct kops_error *e);

/* Work that has `how` or `raw`, and a name. Inside a batch, work with `run` is gathered. */
enum kops_code enqueue_work(struct kops_client *c, struct job *job, void *cuda_stream, uint64_t deadline,
                            struct kops_error *e);

#endif

/* Putting work of any form on a CUDA stream. Lock held; may drop it while it waits. */
#ifndef KOPS_CLIENT_ENQUEUE_H
#define KOPS_CLIENT_ENQUEUE_H

#include "job.h"

/* What the options of an ordered call may not say. */
enum kops_code enqueue_check(const struct kops_options *options, struct kops_error *e);

/* One op; inside a batch it is gathered. `job` packs `w`. */
enum kops_code enqueue_run(struct kops_client *c, struct job *job, struct wire_run *w, void *stream, uint64_t deadline,
                           struct kops_error *e);

/* Any other request; `how` or `raw` is the part of it that gets the numbers. `name` lives as long as the client. */
enum kops_code enqueue_job(struct kops_client *c, struct job *job, struct wire_how *how, struct wire_raw *raw,
                           const char *name, void *stream, uint64_t deadline, struct kops_error *e);

#endif

/* How executions are timed: by CUPTI's record of one, by its kernel where that can tell, else by events around it.
 * Thread: loop; the context is current. */
#ifndef KOPS_CUDA_TIMED_H
#define KOPS_CUDA_TIMED_H

#include "executor.h"

/* Not timed, as yet. */
void cuda_timed_init(struct cuda_execution *x);

/* Before the work of a timed execution is enqueued. */
int cuda_timed_begin(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct cuda_execution *x,
                     struct error *e);
/* The GPU may begin with what is on the stream. Harmless for executions without a gate, and twice. */
void cuda_timed_go(struct cuda_execution *x);
/* All of it is on the stream, the event behind it too. */
void cuda_timed_enqueued(struct cuda_stream *s, struct cuda_execution *x);

/* It has ended: its time becomes a sample of the job, or will when CUPTI's record has come. */
void cuda_timed_end(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct cuda_execution *x,
                    uint64_t seen_ns);

/* Before the stream's driver stream is destroyed. */
void cuda_timed_forget(struct cuda_stream *s);

#endif

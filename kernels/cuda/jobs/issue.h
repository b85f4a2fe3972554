/* Issuing: enqueuing executions on the device. */
#ifndef KOPS_CUDA_ISSUE_H
#define KOPS_CUDA_ISSUE_H

#include "executor.h"

/* Issues as much of the stream's jobs as its windows allow. The context is current. Thread: loop. */
void cuda_stream_issue(struct cuda_stream *s);

#endif

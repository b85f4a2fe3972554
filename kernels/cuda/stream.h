/* A queue of jobs on one driver stream. Thread: loop, except where a function says otherwise. */
#ifndef KOPS_CUDA_STREAM_H
#define KOPS_CUDA_STREAM_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "util/list.h"

struct cuda_device;

struct cuda_stream {
    struct cuda_device *device;
    CUstream stream;   /* non-blocking: never waits for the default stream */
    struct list jobs;  /* struct backend_job.link, in submission order, until done */
    struct list *next; /* the first job that is not fully issued; &jobs: none */
    struct list link;  /* in device->busy while it has jobs, or in device->idle_streams */
    enum backend_priority priority;
    unsigned in_flight;       /* executions issued and not yet reaped */
    unsigned steps_in_flight; /* launches in them */
    atomic_ullong *flag;      /* a word of ours that the GPU writes behind each execution; NULL: events tell */
    CUdeviceptr flag_address;
    uint64_t marks; /* the last value that was sent to the flag */
    CUevent wake;   /* EVENT_PLAIN_END behind mark `wake_mark`, for a thread to sleep on; or NULL */
    uint64_t wake_mark;
    CUevent waited;        /* the event that a waiter was last given */
    CUdeviceptr workspace; /* for cuBLASLt; 0: none. Jobs of one stream never overlap, so they share it */
};

static inline struct cuda_stream *cuda_stream(struct backend_stream *s)
{
    return (struct cuda_stream *)(void *)s;
}

int cuda_stream_new(struct backend_device *base, enum backend_priority priority, struct backend_stream **ret_stream,
                    struct error *e);
void cuda_stream_free(struct backend_stream *stream);

/* Destroys the idle streams that were kept for reuse. */
void cuda_streams_close(struct cuda_device *d);

/* Makes sure of stream->workspace. */
int cuda_stream_need_workspace(struct cuda_stream *s, struct error *e);

/* After the last job: gives the workspace back unless few streams hold one. */
void cuda_stream_rest(struct cuda_stream *s);

#endif

/* Opens and closes the executor of one device. */
#include "executor.h"

#include "compute/kernels.h"

int cuda_executor_open(struct cuda_executor *x, struct cuda_device *d, const struct cuda_kernels *kernels,
                       struct error *e)
{
    x->device = d;
    x->kernels = kernels;
    list_init(&x->busy);
    cuda_capture_open(&x->capture, d, kernels);
    if (cuda_streams_open(&x->streams, d, kernels->workspace_bytes, e) < 0)
        goto close_capture;
    if (cuda_stamps_open(d, &kernels->embedded, &x->stamps, e) < 0)
        goto close_streams;
    cuda_recorded_init(&x->recorded);
    cuda_gates_init(&x->gates, &x->stamps, &kernels->embedded);
    cuda_overhead_measure(d, &kernels->embedded, &x->streams.flags, &x->gates, &x->overhead);
    x->waiters = cuda_waiters_new(d);
    if (!x->waiters) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the waiting threads' table");
        goto close_stamps;
    }
    cuda_job_pool_open(&x->job_pool);
    return 0;

close_stamps:
    cuda_stamps_close(d, &x->stamps);
close_streams:
    cuda_streams_close(&x->streams);
close_capture:
    cuda_capture_close(&x->capture);
    return -1;
}

void cuda_executor_close(struct cuda_executor *x)
{
    x->waiters = cuda_waiters_free(x->waiters);
    cuda_job_pool_close(&x->job_pool);
    cuda_stamps_close(x->device, &x->stamps);
    cuda_streams_close(&x->streams);
    cuda_capture_close(&x->capture);
}

int cuda_executor_stream_new(struct cuda_executor *x, enum backend_priority priority,
                             struct backend_stream **ret_stream, struct error *e)
{
    struct cuda_stream *s;

    if (cuda_stream_new(&x->streams, priority, x, &s, e) < 0)
        return -1;
    *ret_stream = (struct backend_stream *)(void *)s;
    return 0;
}

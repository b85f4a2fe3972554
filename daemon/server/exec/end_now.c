/* Telling a job to end: it ends later, through done(). */
#include "server/exec/run.h"

void run_cancel_job(struct run *run)
{
    atomic_store(&run->job.cancel, true);
    if (run->state == RUN_SUBMITTED && run->device->backend->cancel)
        run->device->backend->cancel(&run->job);
}

bool run_can_end_now(const struct run *run)
{
    return run->state == RUN_SUBMITTED && run->device->ends && run->job.domain != DOMAIN_COMMON;
}

bool run_end_now(struct run *run)
{
    const bool first = list_first(&run->stream->given) == &run->queue_link;

    run->must_end = true;
    if (first)
        atomic_store(&run->job.end_now, true);
    run_cancel_job(run);
    return first;
}

void stream_end_next(struct stream *stream)
{
    struct list *node = list_first(&stream->given);
    struct run *run = node ? list_entry(node, struct run, queue_link) : NULL;

    if (run && run->must_end && !atomic_load(&run->job.end_now))
        run_end_now(run);
}

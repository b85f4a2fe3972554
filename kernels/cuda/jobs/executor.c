/* Opens and closes the executor of one device, and makes progress on its streams. */
#include "executor.h"

#include "compute/kernels.h"
#include "util/clock.h"

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

/* ---- the loop's entries ---- */

enum { HEALTH_NS = 1000 * 1000, POLLS_A_CLOCK = 64 };

static void advance_stream(struct cuda_stream *s, struct list *finished)
{
    /* Two rounds: an ended execution lets others be issued, which may end at once. Not more: other streams wait. */
    for (unsigned round = 0; round < 2; round++) {
        if (s->next != &s->jobs)
            cuda_stream_issue(s);
        cuda_stream_finish(s, finished);
        if (s->next == &s->jobs)
            return;
    }
}

/* No flag is written in a broken context, so a stream is queried now and then, which also reveals a broken context. The
 * clock is not read at each poll, since that would cost more than the poll. */
static void check_health(struct cuda_executor *x)
{
    struct list *node = list_first(&x->busy);
    uint64_t now;

    if (!node || ++x->polls % POLLS_A_CLOCK)
        return;
    now = clock_now_ns();
    if (now - x->health_checked_ns < HEALTH_NS)
        return;
    x->health_checked_ns = now;
    cuda_stream_check(list_entry(node, struct cuda_stream, link));
    list_remove(node); /* the next check queries another stream */
    list_append(&x->busy, node);
}

static void poll_streams(struct cuda_executor *x, struct list *finished)
{
    struct cuda_device *d = x->device;
    struct error ignored;
    bool usable = cuda_enter(d, &ignored) == 0;

    list_for_each_safe (node, after, &x->busy) {
        struct cuda_stream *s = list_entry(node, struct cuda_stream, link);

        if (usable)
            advance_stream(s, finished);
    }
    if (usable)
        check_health(x);
    if (cuda_device_is_broken(d)) {
        d->base.lost = true;
        list_for_each_safe (node, after, &x->busy) {
            cuda_stream_fail(list_entry(node, struct cuda_stream, link), finished);
        }
    }
    if (list_empty(finished))
        return;
    list_for_each_safe (node, after, &x->busy) {
        struct cuda_stream *s = list_entry(node, struct cuda_stream, link);

        if (!list_empty(&s->jobs))
            continue;
        list_remove(node);
        if (!d->base.lost)
            cuda_stream_rest(s);
    }
}

unsigned cuda_poll(struct cuda_executor *x)
{
    struct list finished;
    struct list *node;

    if (cuda_device_is_broken(x->device))
        x->device->base.lost = true;
    if (x->unfinished == 0)
        return 0;
    list_init(&finished);
    poll_streams(x, &finished);
    /* done() may submit jobs and free streams. */
    while ((node = list_first(&finished))) {
        struct backend_job *job = list_entry(node, struct backend_job, link);

        list_remove(node);
        x->unfinished--;
        job->done(job);
    }
    cuda_recorded_tell(&x->recorded, &x->device->host, false, x->progress_ns);
    return x->unfinished;
}

void cuda_arm(struct cuda_executor *x)
{
    bool now = cuda_device_is_broken(x->device);
    bool nap = cuda_recorded_tell(&x->recorded, &x->device->host, true, x->progress_ns);

    list_for_each_safe (node, after, &x->busy) {
        struct cuda_stream *s = list_entry(node, struct cuda_stream, link);
        CUevent next = NULL;

        switch (cuda_stream_waits_for(s, &next)) {
        case WAIT_NOTHING:
            now = true;
            break;
        case WAIT_FLAG:
            nap = true;
            break;
        case WAIT_THREAD:
            break;
        case WAIT_EVENT:
            if (next != s->waited && cuda_waiters_sleep(x->waiters, next, x->progress_ns))
                s->waited = next;
            else if (next != s->waited)
                nap = true;
            break;
        }
    }
    if (nap && !now) {
        now = !cuda_waiters_nap(x->waiters, x->progress_ns);
        x->polls = POLLS_A_CLOCK - 1; /* the next poll reads the clock */
    }
    if (now)
        x->device->host.wake(x->device->host.context);
}

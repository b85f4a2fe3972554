#include <stdlib.h>

#include "server/connection.h"
#include "server/pump.h"
#include "server/request.h"
#include "server/run.h"

/* ---- the devices' queues, pooled ---- */

static struct pooled_stream *backend_stream(struct stream *stream, struct backend_device *device, struct error *e)
{
    struct list *pool = &stream->connection->server->free_streams[device->index];
    struct pooled_stream *p = stream->backends[device->index];

    if (p)
        return p;
    if (!list_empty(pool)) {
        p = list_entry(list_first(pool), struct pooled_stream, link);
        list_remove(&p->link);
    } else {
        p = calloc(1, sizeof(*p));
        if (!p) {
            error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a stream");
            return NULL;
        }
        list_init(&p->link);
        if (device->backend->stream_new(device, &p->stream, e) < 0) {
            free(p);
            return NULL;
        }
    }
    stream->backends[device->index] = p;
    return p;
}

struct stream *stream_free(struct stream *stream)
{
    if (!stream)
        return NULL;
    for (unsigned i = 0; i < BACKEND_MAX_DEVICES; i++)
        if (stream->backends[i])
            list_append(&stream->connection->server->free_streams[i], &stream->backends[i]->link);
    free(stream);
    return NULL;
}

void stream_pool_free(struct server *s)
{
    for (unsigned i = 0; i < s->devices.count; i++)
        list_for_each_safe (node, after, &s->free_streams[i]) {
            struct pooled_stream *p = list_entry(node, struct pooled_stream, link);

            s->devices.all[i]->backend->stream_free(p->stream);
            list_remove(node);
            free(p);
        }
}

/* ---- the queue ---- */

static bool repeats(const struct run *run)
{
    return run->job.warmup + run->job.repeat > 1;
}

int stream_enqueue(struct connection *c, uint64_t number, struct request *r, struct error *e)
{
    struct stream *stream = c->streams[number];

    if (!stream) {
        stream = calloc(1, sizeof(*stream));
        if (!stream)
            return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a stream");
        stream->connection = c;
        list_init(&stream->queue);
        c->streams[number] = stream;
    }
    r->run.stream = stream;
    r->run.state = RUN_QUEUED;
    list_append(&stream->queue, &r->run.queue_link);
    return 0;
}

void stream_remove(struct request *r)
{
    struct stream *stream = r->run.stream;

    list_remove(&r->run.queue_link);
    if (r->run.state != RUN_QUEUED) {
        stream->submitted--;
        stream->repeating -= repeats(&r->run);
    }
    if (r->run.state == RUN_PREPARING)
        stream->preparing--;
}

static void submit(struct run *run)
{
    struct request *r = list_entry(run, struct request, run);
    struct stream *stream = run->stream;

    run->state = RUN_SUBMITTED;
    pump_submitted(r->connection->server, run->device);
    run->device->backend->submit(stream->backends[run->device->index]->stream, &run->job);
}

static void prepare_run(struct work *work)
{
    struct run *run = list_entry(work, struct run, prepare);
    struct backend_stream *s = run->stream->backends[run->device->index]->stream;

    run->job.failed = run->device->backend->prepare(s, &run->job, &run->job.error) < 0;
}

static void prepare_done(struct work *work)
{
    struct run *run = list_entry(work, struct run, prepare);
    struct stream *stream = run->stream;

    if (run->job.failed) {
        run_finish(list_entry(run, struct request, run));
        return;
    }
    stream->preparing--;
    submit(run); /* a run that was stopped meanwhile ends through the job's cancel flag */
    stream_advance(stream);
}

/* Takes the first run that was not given to a device one step further. False: nothing can be done now. */
static bool advance_one(struct stream *stream, struct run *run)
{
    struct request *r = list_entry(run, struct request, run);
    struct server *s = r->connection->server;
    const struct backend *backend = run->device->backend;
    struct error e;

    if (run->maps_pending)
        return false;
    if (run->failed) {
        run_finish(r);
        return true;
    }
    if (plan_is_empty(&run->job.plan)) {
        run->job.h2d_us = run->job.d2h_us = __builtin_nan("");
        run_finish(r);
        return true;
    }
    if (stream->submitted && stream->device != run->device)
        return false; /* order across devices: the earlier one ends first */
    if (stream->repeating)
        return false; /* it may last: until it ends, what is behind can be cancelled and has deadlines */
    if (!backend_stream(stream, run->device, &e)) {
        run->failed = true;
        run->error = e;
        run_finish(r);
        return true;
    }
    stream->device = run->device;
    if (backend->needs_prepare && backend->needs_prepare(run->device, &run->job)) {
        if (stream->submitted)
            return false;
        stream->submitted++;
        stream->repeating += repeats(run);
        stream->preparing++;
        run->state = RUN_PREPARING;
        work_submit(&s->loop, &run->prepare, prepare_run, prepare_done);
        return false;
    }
    stream->submitted++;
    stream->repeating += repeats(run);
    submit(run);
    return true;
}

void stream_advance(struct stream *stream)
{
    bool more = true;

    while (more && !stream->preparing) {
        struct run *next = NULL;

        more = false;
        list_for_each_safe (node, after, &stream->queue) {
            struct run *run = list_entry(node, struct run, queue_link);

            if (run->state == RUN_QUEUED) {
                next = run;
                break;
            }
        }
        if (next)
            more = advance_one(stream, next);
    }
}

#include "server/exec/stream.h"

#include <stdlib.h>

#include "server/exec/room.h"
#include "server/exec/run.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/clock.h"

static void device_queue_give(struct server *s, struct device_queue *p);

/* ---- device queues ---- */

static struct device_queue *find_free(struct list *pool, int parity)
{
    list_for_each_safe (node, after, pool) {
        struct device_queue *p = list_entry(node, struct device_queue, link);

        if (parity == PARITY_ANY || (int)(p->number % 2) == parity) {
            list_remove(&p->link);
            return p;
        }
    }
    return NULL;
}

static struct device_queue *make(struct server *s, struct backend_device *device, enum backend_priority priority,
                                 struct error *e)
{
    struct device_queue *p = calloc(1, sizeof(*p));

    if (!p) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a stream");
        return NULL;
    }
    list_init(&p->link);
    p->device = device;
    p->priority = priority;
    if (device->backend->stream_new(device, priority, &p->stream, e) < 0) {
        free(p);
        return NULL;
    }
    p->number = s->exec->queues_made[device->index]++;
    return p;
}

/* Returns a free queue, or a new one. NULL: *e. */
static struct device_queue *device_queue_take(struct server *s, struct backend_device *device,
                                              enum backend_priority priority, int parity, struct error *e)
{
    struct device_queue *p = find_free(&s->exec->free_queues[device->index][priority], parity), *wrong;

    if (p)
        return p;
    p = make(s, device, priority, e);
    if (!p || parity == PARITY_ANY || (int)(p->number % 2) == parity)
        return p;
    wrong = p;
    p = make(s, device, priority, e);
    device_queue_give(s, wrong);
    return p;
}

/* Gives a queue without jobs back. NULL is allowed. */
static void device_queue_give(struct server *s, struct device_queue *p)
{
    if (p)
        list_append(&s->exec->free_queues[p->device->index][p->priority], &p->link);
}

void device_queues_free(struct server *s)
{
    for (unsigned i = 0; i < s->devices.count; i++)
        for (unsigned j = 0; j < PRIORITY_COUNT; j++)
            list_for_each_safe (node, after, &s->exec->free_queues[i][j]) {
                struct device_queue *p = list_entry(node, struct device_queue, link);

                list_remove(node);
                s->devices.all[i]->backend->stream_free(p->stream);
                free(p);
            }
}

/* ---- queue probe ---- */

enum { TRIED = 64, /* ops with each queue */ BETTER_BY_PERCENT = 10 };

static struct device_queue **probed_queue(struct stream *stream, const struct run *run)
{
    return &stream->backends[run->device->index][run->priority];
}

/* Gives the stream another queue, and puts the present one aside. */
static void try_other(struct stream *stream, const struct run *run)
{
    struct device_queue **at = probed_queue(stream, run), *other;
    struct queue_probe *p = &stream->queue_probe;
    struct error ignored;

    p->phase = PROBE_SETTLED;
    other = device_queue_take(stream->connection->server, run->device, run->priority, !((*at)->number % 2), &ignored);
    if (!other)
        return;
    p->phase = PROBE_OTHER;
    p->spare = *at;
    *at = other;
}

static void settle(struct stream *stream, const struct run *run)
{
    struct device_queue **at = probed_queue(stream, run), *worse = *at;
    struct queue_probe *p = &stream->queue_probe;

    p->phase = PROBE_SETTLED;
    if ((*at)->device != p->spare->device || (*at)->priority != p->spare->priority)
        return; /* the client went elsewhere meanwhile */
    if (p->best_ns[1] * 100 < p->best_ns[0] * (100 - BETTER_BY_PERCENT))
        worse = p->spare;
    else
        *at = p->spare;
    p->spare = NULL;
    device_queue_give(stream->connection->server, worse);
}

/* An ordered run is about to begin. Notes the time since the last one, and may give the stream another queue. Harmless
 * for other runs. */
static void queue_probe_note(struct stream *stream, const struct run *run)
{
    struct queue_probe *p = &stream->queue_probe;
    uint64_t now, distance;

    /* Work on two queues has no order, so only a stream without work on the device may change. */
    if (p->phase == PROBE_SETTLED || !run->ready || stream->submitted)
        return;
    now = clock_now_ns();
    distance = now - p->last_ns;
    p->last_ns = now;
    if (p->seen++ == 0)
        p->best_ns[p->phase] = UINT64_MAX; /* an op before the change says nothing of this queue */
    else if (distance < p->best_ns[p->phase])
        p->best_ns[p->phase] = distance;
    if (p->seen < TRIED)
        return;
    p->seen = 0;
    if (p->phase == PROBE_FIRST)
        try_other(stream, run);
    else
        settle(stream, run);
}

/* The stream ends: gives back the queue that was put aside. */
static void queue_probe_end(struct stream *stream)
{
    device_queue_give(stream->connection->server, stream->queue_probe.spare);
    stream->queue_probe.spare = NULL;
}

/* ---- streams: the devices' queues ---- */

static struct device_queue *backend_stream(struct stream *stream, struct backend_device *device,
                                           enum backend_priority priority, struct error *e)
{
    struct device_queue **at = &stream->backends[device->index][priority];

    if (!*at)
        *at = device_queue_take(stream->connection->server, device, priority, PARITY_ANY, e);
    return *at;
}

struct stream *stream_free(struct stream *stream)
{
    if (!stream)
        return NULL;
    list_remove(&stream->held_link);
    list_remove(&stream->yield_link);
    queue_probe_end(stream);
    for (unsigned i = 0; i < BACKEND_MAX_DEVICES; i++)
        for (unsigned j = 0; j < PRIORITY_COUNT; j++)
            device_queue_give(stream->connection->server, stream->backends[i][j]);
    free(stream);
    return NULL;
}

/* ---- streams: how many jobs each device has ---- */

/* The run is offered to its device for the first time. */
static void note_offered(struct server *s, const struct run *run)
{
    const unsigned device = run->device->index;

    s->exec->urgent_running[device] += run->priority != PRIORITY_LOW;
    s->exec->jobs_running[device]++;
    s->exec->jobs_begun[device]++;
    s->exec->n_jobs_running++;
    s->active = true;
}

/* An offered run ends. */
static void note_ended(struct server *s, const struct run *run)
{
    const unsigned device = run->device->index;

    s->exec->urgent_running[device] -= run->priority != PRIORITY_LOW;
    s->exec->jobs_running[device]--;
    s->exec->n_jobs_running--;
    s->active = true;
}

/* ---- streams: the queue ---- */

static bool repeats(const struct run *run)
{
    return run->job.warmup + run->job.repeat > 1;
}

struct stream *stream_get(struct connection *c, uint64_t number, struct error *e)
{
    struct stream *stream = c->exec->streams[number];

    if (stream)
        return stream;
    stream = calloc(1, sizeof(*stream));
    if (!stream) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a stream");
        return NULL;
    }
    stream->connection = c;
    stream->number = (unsigned)number;
    list_init(&stream->given);
    list_init(&stream->queue);
    list_init(&stream->held_link);
    list_init(&stream->yield_link);
    c->exec->streams[number] = stream;
    return stream;
}

void stream_enqueue(struct stream *stream, struct run *run)
{
    run->stream = stream;
    run->state = RUN_QUEUED;
    stream->connection->exec->queued++;
    list_append(&stream->queue, &run->queue_link);
}

/* Ends the stream's first run, where it must end, and could not while another one was before it. */
static void end_next(struct stream *stream)
{
    struct list *node = list_first(&stream->given);
    struct run *run = node ? list_entry(node, struct run, queue_link) : NULL;

    if (run && run->must_end && !atomic_load(&run->job.end_now))
        run_end_now(run);
}

void stream_remove(struct run *run)
{
    struct stream *stream = run->stream;

    list_remove(&run->queue_link);
    if (run->state == RUN_SUBMITTED) {
        stream->submitted--;
        stream->repeating -= repeats(run);
    } else {
        stream->connection->exec->queued--;
    }
    if (run->state == RUN_OFFERED)
        run->device->backend->withdraw(&run->job);
    if (run->state != RUN_QUEUED)
        note_ended(stream->connection->server, run);
    end_next(stream);
}

void stream_take_back(struct run *run)
{
    struct stream *stream = run->stream;

    if (list_first(&stream->given) == &run->queue_link)
        stream->watched = 0; /* it has its full time again */
    list_remove(&run->queue_link);
    list_append(stream->queue.next, &run->queue_link);
    run->state = RUN_OFFERED;
    stream->submitted--;
    stream->repeating -= repeats(run);
    stream->connection->exec->queued++;
}

static struct backend_stream *queue_of(const struct run *run)
{
    return run->stream->backends[run->device->index][run->priority]->stream;
}

/* The client learns when its reply is likely, or that too many wait for all of them to poll. */
static void tell_client(const struct run *run)
{
    const struct connection *c = run->stream->connection;
    const bool crowded = c->server->exec->n_jobs_running >= c->server->config.polling_clients;

    if (c->channel && wait_is_known(&run->job.window))
        rpc_channel_expect(c->channel, crowded ? (struct wait_window){.to_ns = WAIT_CROWDED} : run->job.window);
}

/* Offers the run to its device. False: the device does not take it yet. */
static bool submit(struct stream *stream, struct run *run)
{
    struct connection *c = stream->connection;
    const bool first = run->state == RUN_QUEUED, taken = run->device->backend->submit(queue_of(run), &run->job);

    run->state = taken ? RUN_SUBMITTED : RUN_OFFERED;
    if (taken) {
        list_remove(&run->queue_link);
        list_append(&stream->given, &run->queue_link);
        stream->device = run->device;
        stream->priority = run->priority;
        stream->submitted++;
        stream->repeating += repeats(run);
        c->exec->queued--;
        tell_client(run);
    }
    if (first)
        note_offered(c->server, run); /* only now: a job that submit() waited for was an earlier one */
    return taken;
}

/* Whether the run, of low priority, waits for other work of its device. */
static bool must_yield(struct stream *stream, const struct run *run)
{
    struct server *s = stream->connection->server;

    if (run->priority != PRIORITY_LOW || !s->exec->urgent_running[run->device->index])
        return false;
    if (list_empty(&stream->yield_link))
        list_append(&s->exec->yielding, &stream->yield_link);
    return true;
}

void streams_end_yielding(struct server *s)
{
    struct list again, *node;

    /* Each stream gets one look; a stream that must wait on enters the list again. */
    list_take(&again, &s->exec->yielding);
    while ((node = list_pop(&again)))
        stream_advance(list_entry(node, struct stream, yield_link));
}

/* Advances the first run that no device has. False: it must wait. */
static bool advance_one(struct stream *stream, struct run *run)
{
    struct error e;

    if (run->maps_pending)
        return false;
    if (run->failed || backend_job_is_empty(&run->job)) {
        /* The word of a run is written in its turn. A run that came back and is lost ends after those before it. */
        if (stream->submitted &&
            ((run->done && run->stop != RUN_ABANDONED) || (run->state == RUN_OFFERED && run->stop == RUN_GOES_ON)))
            return false;
        timeline_pass_on(run);
        timeline_write_done(run);
        run_end(run);
        return true;
    }
    if (!timeline_is_reached(run)) {
        timeline_hold(run);
        return false;
    }
    if (stream->submitted && (stream->device != run->device || stream->priority != run->priority))
        return false; /* two device queues have no order: the earlier run ends first */
    if (stream->repeating)
        return false; /* a repeating run may last, and runs behind it stay easy to cancel */
    if (must_yield(stream, run))
        return false;
    if (!backend_stream(stream, run->device, run->priority, &e)) {
        run->failed = true;
        run->error = e;
        return true;
    }
    if (run->state == RUN_QUEUED)
        queue_probe_note(stream, run);
    return submit(stream, run);
}

void stream_advance(struct stream *stream)
{
    struct list *node;

    while ((node = list_first(&stream->queue)))
        if (!advance_one(stream, list_entry(node, struct run, queue_link)))
            return;
}

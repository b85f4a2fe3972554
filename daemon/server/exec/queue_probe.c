/* The queue probe: finds the device queue that goes best with the client's stream.
 *
 * On an H200 under MPS one link of ordered work takes 10.7 us with every other queue of the daemon and 15 us with the
 * rest, and which ones these are depends on the client's stream in the same way: as if two engines fetched the work of
 * channels, dealt out in the order these were made, and a client's waiting channel slowed the others on its own. No
 * process can ask for that. So two queues of different parity are tried in turn, and the better one stays.
 *
 * A stream whose ops come one by one is timed as well; what is compared is the shortest distance between two ops, so
 * one pair in quick succession says enough. */

#include "server/exec/device_queues.h"
#include "server/exec/room.h"
#include "util/clock.h"

enum { TRIED = 64, /* ops with each queue */ BETTER_BY_PERCENT = 10 };

static struct device_queue **queue_of(struct stream *stream, const struct run *run)
{
    return &stream->backends[run->device->index][run->priority];
}

/* Gives the stream another queue, and puts the present one aside. */
static void try_other(struct stream *stream, const struct run *run)
{
    struct device_queue **at = queue_of(stream, run), *other;
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
    struct device_queue **at = queue_of(stream, run), *worse = *at;
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

void queue_probe_note(struct stream *stream, const struct run *run)
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

void queue_probe_end(struct stream *stream)
{
    device_queue_give(stream->connection->server, stream->queue_probe.spare);
    stream->queue_probe.spare = NULL;
}

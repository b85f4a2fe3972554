/* Channels: the few queues of a device that many streams share.
 *
 * Work goes to the device in the order in which it was queued to its channel. A wait that is not over holds everything
 * behind it there, of whatever stream; work itself holds nothing but its own stream. A channel has room for so many
 * operations; who queues one more waits. Off unless the control page says otherwise. */
#include <stdlib.h>

#include "standin.h"

enum { CHANNELS_USUAL = 8 };

unsigned channel_choose(struct context *context)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    unsigned long n = text ? strtoul(text, NULL, 10) : CHANNELS_USUAL;

    if (n < 1 || n > MAX_CHANNELS)
        n = n < 1 ? CHANNELS_USUAL : MAX_CHANNELS;
    return context->streams_made++ % (unsigned)n;
}

static bool waits(const struct op *op)
{
    return op->kind == OP_WAIT_VALUE || op->kind == OP_AFTER;
}

static struct channel *channel_of(const struct stream *stream)
{
    return &stream->context->channels[stream->channel];
}

void channel_wait_for_room(struct stream *stream)
{
    bool counted = false;
    uint32_t entries;

    stream->references++;
    while (control_channels(&entries) && channel_of(stream)->queued >= entries && !stream->context->broken) {
        if (!counted)
            count(STANDIN_COUNTER_full_channels, 1);
        count(STANDIN_COUNTER_blocked_launches, 1);
        wait_for_progress(&counted);
        count(STANDIN_COUNTER_blocked_launches, -1);
    }
    stream_unref(stream);
}

void channel_enter(struct stream *stream, struct op *op)
{
    struct channel *channel = channel_of(stream);
    uint32_t entries;

    if (!control_channels(&entries))
        return;
    op->place = ++channel->places;
    channel->queued++;
    if (waits(op))
        channel->waits++;
}

void channel_leave(struct stream *stream, const struct op *op)
{
    struct channel *channel = channel_of(stream);

    if (!op->place)
        return;
    channel->queued--;
    if (waits(op))
        channel->waits--;
}

bool channel_holds(const struct stream *streams, const struct stream *stream, const struct op *op)
{
    if (!op->place || !channel_of(stream)->waits)
        return false;
    for (const struct stream *s = streams; s; s = s->next)
        if (s != stream && s->context == stream->context && s->channel == stream->channel)
            for (const struct op *o = s->head; o; o = o->next)
                if (o->place && o->place < op->place && waits(o))
                    return true;
    return false;
}

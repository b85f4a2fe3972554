#include "server/peer/back_pressure.h"

#include "server/peer/user_pressure.h"

/* REPLY_FDS: descriptors of one reply at most. WAITING_REPLY_FDS: descriptors that may wait in the output, together
 * with those of replies still to come. */
enum { REPLY_FDS = CHANNEL_FDS, WAITING_REPLY_FDS = RPC_OUTPUT_MAX_ATTACHMENTS - REPLY_FDS };
/* Bytes of a partial message that are read while its user has no room. */
enum { INPUT_WITHOUT_ROOM = 4096 };

static bool has_credit(const struct connection *c)
{
    if (c->fd_replies + c->output.n_attachments > WAITING_REPLY_FDS)
        return false;
    return c->inflight < c->server->config.inflight && c->request_bytes <= REQUEST_BYTES_MAX && user_pressure_admits(c);
}

/* Replies that may wait for each connection of a user without room, before it must read them. */
enum { OUTPUT_WITHOUT_ROOM = 4096 };

/* Replies that may wait for the connection before it is not read. */
static uint64_t output_max(const struct connection *c)
{
    const uint64_t most = c->server->config.output_bytes;

    return user_pressure_admits(c) || most < OUTPUT_WITHOUT_ROOM ? most : OUTPUT_WITHOUT_ROOM;
}

bool connection_is_stuck(const struct connection *c)
{
    const uint64_t in_socket = buffer_length(&c->output.bytes),
                   in_ring = c->channel ? rpc_channel_pending(c->channel) : 0;
    const uint64_t waiting = in_socket > in_ring ? in_socket : in_ring;

    return waiting && waiting > output_max(c);
}

bool connection_may_read(const struct connection *c)
{
    return !c->input_ended && has_credit(c) && !connection_is_stuck(c);
}

/* Without credit a connection is read until its next message is known, since some requests need no credit. While its
 * user has no room only small messages are read: a long `ping` must not add to the waiting bytes. */
static bool may_look(const struct connection *c, const struct rpc_input *in, bool waits)
{
    if (c->input_ended || connection_is_stuck(c))
        return false;
    return has_credit(c) || (!waits && (user_pressure_admits(c) || buffer_length(&in->bytes) < INPUT_WITHOUT_ROOM));
}

bool connection_may_look(const struct connection *c)
{
    return may_look(c, &c->input, c->input_waits);
}

bool connection_may_look_at_ring(const struct connection *c)
{
    return may_look(c, &c->channel->input, c->ring_waits);
}

bool connection_has_part(const struct connection *c)
{
    return !c->input_ended &&
           ((!c->input_left && buffer_length(&c->input.bytes) && connection_may_look(c)) ||
            (c->channel && !c->ring_left && buffer_length(&c->channel->input.bytes) && connection_may_look_at_ring(c)));
}

bool connection_has_output(const struct connection *c)
{
    return buffer_length(&c->output.bytes) || (c->channel && rpc_channel_pending(c->channel));
}

void connection_mark_dirty(struct connection *c)
{
    if (!c->closed)
        schedule_add(&c->server->schedule, &c->account->turns, &c->task);
}

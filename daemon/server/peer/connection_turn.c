/* A connection's turn: takes input, continues waiting requests, sends replies. Also decides which events its socket is
 * watched for. */

#include "server/peer/back_pressure.h"
#include "server/peer/barrier.h"
#include "server/peer/connection.h"
#include "server/peer/long_reply.h"
#include "server/peer/peer_timeouts.h"
#include "server/peer/user_pressure.h"
#include "util/watch.h"

static void on_poll(uv_poll_t *poll, int status, int events);

/* ---- watching the socket ---- */

/* UV_DISCONNECT, so that the end of a client is seen also while it is not read. */
int connection_watch_socket(struct connection *c)
{
    c->unwatched = false;
    return watch_start(&c->poll, (c->reading ? UV_READABLE : 0) | (c->writing ? UV_WRITABLE : 0) | UV_DISCONNECT,
                       on_poll);
}

static void update_poll(struct connection *c)
{
    bool reading = connection_may_look(c), writing = buffer_length(&c->output.bytes) > 0 && !c->send_later;

    if (c->closed || (reading == c->reading && writing == c->writing))
        return;
    c->reading = reading;
    c->writing = writing;
    if (connection_watch_socket(c) < 0)
        connection_close(c, "no memory to watch its socket");
}

void connection_unwatch(struct connection *c)
{
    if (c->closed || c->unwatched || !c->reading || c->writing)
        return;
    c->unwatched = true;
    uv_poll_stop(&c->poll);
}

void connection_watch(struct connection *c)
{
    if (c->closed || !c->unwatched)
        return;
    if (connection_watch_socket(c) < 0)
        connection_close(c, "no memory to watch its socket");
}

/* ---- output ---- */

static int flush_ring(struct connection *c)
{
    uint64_t position = c->channel->output.position;
    struct error e;

    if (rpc_channel_flush(c->channel, &e) < 0) {
        connection_violation(c, &e);
        return -1;
    }
    c->server->counters.bytes_out += c->channel->output.position - position;
    return 0;
}

/* Charges the descriptors of replies that the client has not read. */
static void count_waiting_fds(struct connection *c)
{
    if (c->waiting_fds.amount != c->output.n_attachments)
        charge_note(&c->waiting_fds, c->output.n_attachments);
}

/* Takes input, or a part of it. -1: the connection was closed. */
static int take_some(struct connection *c)
{
    if (c->readable)
        connection_take_input(c);
    else if (c->input_left)
        connection_process(c);
    if (!c->closed && c->ring_ready)
        connection_read_ring(c);
    return c->closed ? -1 : 0;
}

void connection_turn(struct connection *c)
{
    uint64_t position = c->output.position, ring_position = c->channel ? c->channel->output.position : 0;
    int flushed;

    if (take_some(c) < 0)
        return;
    barriers_step(c);
    long_replies_step(c);
    if (c->channel)
        rpc_channel_settle(c->channel, &c->output);
    if (c->output.bytes.failed || (c->channel && c->channel->output.bytes.failed)) {
        connection_close(c, "replies do not fit into memory");
        return;
    }
    if (c->channel && flush_ring(c) < 0)
        return;
    flushed = rpc_output_flush(&c->output, c->fd);
    if (flushed < 0) {
        connection_close(c, "the client is gone");
        return;
    }
    c->send_later = flushed == RPC_OUTPUT_LATER;
    c->server->counters.bytes_out += c->output.position - position;
    count_waiting_fds(c);
    user_pressure_note(c);
    if (c->input_left && connection_may_look(c))
        connection_mark_dirty(c);
    barriers_advance(c);
    if (long_replies_may_go_on(c))
        connection_mark_dirty(c);
    update_poll(c);
    if (!c->closed)
        peer_timeouts_note(c, c->output.position != position ||
                                  (c->channel && c->channel->output.position != ring_position));
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct connection *c = poll->data;

    if (status < 0) {
        connection_close(c, "socket error");
        return;
    }
    if (events & UV_READABLE) {
        if (schedule_begin_at_once(&c->server->schedule, &c->account->turns))
            connection_take_input(c);
        else
            c->readable = true;
        if (!c->closed)
            user_pressure_note(c); /* before other connections are read */
    }
    if ((events & UV_DISCONNECT) && !c->reading && !c->closed) {
        connection_close(c, "the client hung up");
        return;
    }
    connection_mark_dirty(c);
}

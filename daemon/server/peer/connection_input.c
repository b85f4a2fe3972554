/* Input: messages from clients' sockets and rings to dispatch(), a bounded number a turn. */
#include <string.h>

#include "rpc/input.h"
#include "server/peer/back_pressure.h"
#include "server/peer/connection.h"
#include "server/peer/peers.h"
#include "server/peer/request.h"
#include "server/peer/room.h"
#include "util/clock.h"
#include "util/log.h"

/* Bounds of one connection's input before other connections and the devices have their turn. */
enum { READS_A_TURN = 8, LONG_MESSAGE = 2048, MESSAGES_A_TURN = 64, RING_MESSAGES_A_TURN = 64, LAST_TURNS = 256 };

void connection_violation(struct connection *c, const struct error *e)
{
    bool protocol = e->code == ERROR_PROTOCOL_ERROR;

    c->server->counters.protocol_errors += protocol;
    event_protocol_error(c, e);
    connection_fail(c, e, protocol ? "protocol error" : "the daemon has no room for what it sent");
}

/* Closes the descriptors that the handler has not kept. */
static void close_unkept(struct connection *c, struct request_fds *fds)
{
    for (unsigned i = 0; i < fds->count;) {
        if (fds->fds[i] >= 0)
            i++;
        else
            fds->fds[i] = fds->fds[--fds->count];
    }
    account_close_fds(c->account, fds->fds, fds->count);
}

/* Dispatches one whole message of the socket's or the ring's input, or looks through a part of a long one. 1: done, and
 * there may be more; 0: no whole message; -1: the connection was closed. */
static int process_one(struct connection *c, struct rpc_input *in)
{
    struct request_fds fds = {0};
    struct rpc_message message;
    struct rpc_frame frame;
    struct error e;
    int r = rpc_input_next(in, &frame, &e);

    if (r == 0)
        return in->paused ? 1 : 0;
    if (r < 0 || rpc_message_parse(&frame, &message, &e) < 0 || rpc_input_claim(in, message.nfds, fds.fds, &e) < 0)
        goto violate;
    fds.count = message.nfds;
    if (fds.count && account_check_closing(c->account, c->pid, &e) < 0) {
        account_close_fds(c->account, fds.fds, fds.count);
        goto violate;
    }
    c->from_ring = in != &c->input;
    r = dispatch(c, &message, &fds, &e);
    if (frame.length > LONG_MESSAGE)
        schedule_note(&c->server->schedule, clock_now_ns());
    if (fds.count)
        close_unkept(c, &fds);
    if (c->closed)
        return -1;
    if (r < 0 || rpc_input_consume(in, &e) < 0)
        goto violate;
    return 1;

violate:
    connection_violation(c, &e);
    return -1;
}

/* Without credit the next request is served if it needs none: a client with all its requests in flight can still cancel
 * one. *ret_waits: the next message is whole and needs credit. */
static bool may_process(struct connection *c, struct rpc_input *in, bool *ret_waits)
{
    struct rpc_message message;
    struct rpc_frame frame;
    struct error e;

    if (connection_may_read(c))
        return true;
    if (*ret_waits || c->input_ended || connection_is_stuck(c))
        return false;
    if (rpc_input_next(in, &frame, &e) > 0 && rpc_message_parse(&frame, &message, &e) == 0)
        *ret_waits = !request_takes_no_credit(c->server, &message);
    return !*ret_waits; /* process_one() reports the error */
}

/* Whether the connection's time is over. Dispatching a message reads the clock; looking through a part of one does
 * not. */
static bool is_over(const struct connection *c, const struct rpc_input *in)
{
    struct schedule *s = &c->server->schedule;

    return in->paused ? schedule_is_over_now(s) : schedule_is_over(s);
}

/* Dispatches messages that were read, up to a turn's share, while the connection may have more requests. */
int connection_process(struct connection *c)
{
    int r = 1;

    for (unsigned n = 0; r > 0 && n < MESSAGES_A_TURN && may_process(c, &c->input, &c->input_waits); n++) {
        if (n && is_over(c, &c->input))
            break;
        r = process_one(c, &c->input);
        c->input_waits = false;
        if (r > 0 && !buffer_length(&c->input.bytes))
            r = 0; /* no input is left, so no gate is asked again */
    }
    c->input_left = r > 0;
    return r < 0 ? -1 : 0;
}

bool connection_read_ring(struct connection *c)
{
    unsigned messages = 0, reads = 0;
    struct error e;

    c->ring_ready = false;
    while (messages < RING_MESSAGES_A_TURN && reads < READS_A_TURN && !(messages && is_over(c, &c->channel->input)) &&
           may_process(c, &c->channel->input, &c->ring_waits)) {
        size_t before = buffer_length(&c->channel->input.bytes);
        int r = process_one(c, &c->channel->input);

        if (r < 0)
            return true;
        c->ring_waits = false;
        c->ring_left = r > 0;
        if (r > 0) {
            messages++;
            continue;
        }
        switch (rpc_channel_receive(c->channel, &e)) {
        case RPC_RECEIVED:
            c->ring_left = true;
            c->server->counters.bytes_in += buffer_length(&c->channel->input.bytes) - before;
            reads++;
            break;
        case RPC_WOULD_BLOCK:
        case RPC_END:
            return messages + reads > 0;
        case RPC_VIOLATION:
            connection_violation(c, &e);
            return true;
        }
    }
    return messages + reads > 0;
}

void connection_take_input(struct connection *c)
{
    c->readable = false;
    /* Messages left from the last turn come first. Nothing is read on top of them. */
    if (c->input_left && (connection_process(c) < 0 || (c->input_left && !c->input_waits)))
        return;
    for (unsigned i = 0; i < READS_A_TURN && connection_may_look(c); i++) {
        size_t before = buffer_length(&c->input.bytes);
        bool full = false;
        struct error e;

        switch (rpc_socket_receive(c->fd, &c->input, &full, &e)) {
        case RPC_WOULD_BLOCK:
            return;
        case RPC_END:
            connection_close(c, "end of file");
            return;
        case RPC_VIOLATION:
            connection_violation(c, &e);
            return;
        case RPC_RECEIVED:
            c->server->counters.bytes_in += buffer_length(&c->input.bytes) - before;
            c->server->active = true;
            recent_socket_used(c);
            break;
        }
        if (connection_process(c) < 0 || !full || (c->input_left && !c->input_waits) ||
            schedule_is_over_now(&c->server->schedule))
            return;
    }
}

void connection_read_socket(struct connection *c)
{
    connection_take_input(c);
    if (c->closed)
        return;
    user_pressure_note(c);
    connection_mark_dirty(c);
}

void connection_read_all(struct connection *c)
{
    uint64_t end;

    for (unsigned turn = 0; turn < LAST_TURNS && !c->closed; turn++) {
        connection_take_input(c);
        if (c->closed || !c->input_left || !connection_may_look(c))
            break;
    }
    if (c->closed || !c->channel)
        return;
    /* The bytes that a full ring can hold: a client that writes on meanwhile would keep this loop going for ever. */
    end = c->channel->input.position + buffer_length(&c->channel->input.bytes) + RING_REQUEST_BYTES;
    while (!c->closed && c->channel->input.position < end && connection_read_ring(c))
        ;
}

void connection_end_input(struct connection *c)
{
    if (c->closed || c->input_ended)
        return;
    connection_read_all(c);
    if (c->closed)
        return;
    c->input_ended = true;
    connection_mark_dirty(c);
}

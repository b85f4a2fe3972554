#include "server/connection.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rpc/socket.h"
#include "server/access.h"
#include "server/body.h"
#include "server/channel.h"
#include "server/code.h"
#include "server/events.h"
#include "server/request.h"
#include "server/run.h"
#include "server/spin.h"
#include "server/timeline.h"
#include "util/clock.h"
#include "util/log.h"

enum { READS_A_TURN = 8, RING_MESSAGES_A_TURN = 8 };

static void on_poll(uv_poll_t *poll, int status, int events);

/* ---- polling ---- */

bool connection_may_read(const struct connection *c)
{
    const struct server *s = c->server;

    return !c->input_ended && c->inflight < s->config.inflight && c->run_bytes <= RUN_BYTES_MAX &&
           buffer_length(&c->output.bytes) <= s->config.output_bytes &&
           (!c->channel || rpc_channel_pending(c->channel) <= s->config.output_bytes);
}

bool connection_has_output(const struct connection *c)
{
    return buffer_length(&c->output.bytes) || (c->channel && rpc_channel_pending(c->channel));
}

static void update_poll(struct connection *c)
{
    bool reading = connection_may_read(c), writing = buffer_length(&c->output.bytes) > 0;

    if (c->closed || (reading == c->reading && writing == c->writing))
        return;
    c->unwatched = false;
    c->reading = reading;
    c->writing = writing;
    /* UV_DISCONNECT, so that the end of a client is seen also while it is not read. */
    uv_poll_start(&c->poll, (reading ? UV_READABLE : 0) | (writing ? UV_WRITABLE : 0) | UV_DISCONNECT, on_poll);
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
    c->unwatched = false;
    uv_poll_start(&c->poll, UV_READABLE | UV_DISCONNECT, on_poll);
}

void connection_mark_dirty(struct connection *c)
{
    if (!c->closed && list_empty(&c->dirty_link))
        list_append(&c->server->dirty, &c->dirty_link);
}

/* ---- input ---- */

void connection_fail(struct connection *c, const struct error *e, const char *why)
{
    struct error ignored;

    if (c->channel) {
        rpc_channel_settle(c->channel, &c->output);
        rpc_channel_flush(c->channel, &ignored);
    }
    rpc_write_error_notification(&c->output, e);
    if (!c->output.bytes.failed)
        rpc_output_flush(&c->output, c->fd);
    connection_close(c, why);
}

static void violation(struct connection *c, const struct error *e)
{
    char why[ERROR_MESSAGE_MAX + 8];
    unsigned held_back;

    c->server->counters.protocol_errors++;
    if (log_limit_pass(&c->server->protocol_limit, clock_now_ns(), EVENTS_A_SECOND, &held_back))
        log_warning("protocol_error", "pid=%d uid=%d why=%s held_back=%u", (int)c->pid, (int)c->uid,
                    log_quote(why, sizeof(why), e->message, strlen(e->message)), held_back);
    else
        c->server->totals.lines_held_back++;
    connection_fail(c, e, "protocol error");
}

/* Dispatches one whole message of the socket's or the ring's input. 1: done; 0: there is none; -1: the connection was
 * closed. */
static int process_one(struct connection *c, struct rpc_input *in)
{
    struct request_fds fds = {0};
    struct rpc_message message;
    struct rpc_frame frame;
    struct error e;
    int r = rpc_input_next(in, &frame, &e);

    if (r == 0)
        return 0;
    if (r < 0 || rpc_message_parse(c->server->arena, frame.data, frame.length, &message, &e) < 0 ||
        rpc_input_claim(in, message.nfds, fds.fds, &e) < 0)
        goto violate;
    fds.count = message.nfds;
    c->from_ring = in != &c->input;
    r = dispatch(c, &message, &fds, &e);
    for (unsigned i = 0; i < fds.count;) {
        if (fds.fds[i] >= 0)
            i++;
        else
            fds.fds[i] = fds.fds[--fds.count];
    }
    work_close_fds(&c->server->loop, fds.fds, fds.count);
    if (c->closed)
        return -1;
    if (r < 0 || rpc_input_consume(in, &e) < 0)
        goto violate;
    return 1;

violate:
    violation(c, &e);
    return -1;
}

/* Dispatches what is there while the connection may have more requests. */
static int process(struct connection *c)
{
    int r = 1;

    while (r > 0 && connection_may_read(c))
        r = process_one(c, &c->input);
    c->input_left = r > 0;
    return r < 0 ? -1 : 0;
}

bool connection_read_ring(struct connection *c)
{
    unsigned messages = 0, reads = 0;
    struct error e;

    while (messages < RING_MESSAGES_A_TURN && reads < READS_A_TURN && connection_may_read(c)) {
        size_t before = buffer_length(&c->channel->input.bytes);
        int r = process_one(c, &c->channel->input);

        if (r < 0)
            return true;
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
            violation(c, &e);
            return true;
        }
    }
    return messages + reads > 0;
}

static void read_input(struct connection *c)
{
    for (unsigned i = 0; i < READS_A_TURN && connection_may_read(c); i++) {
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
            violation(c, &e);
            return;
        case RPC_RECEIVED:
            c->server->counters.bytes_in += buffer_length(&c->input.bytes) - before;
            c->server->active = true;
            spin_socket_used(c);
            break;
        }
        if (process(c) < 0 || !full)
            return;
    }
}

void connection_read_socket(struct connection *c)
{
    read_input(c);
    if (!c->closed)
        connection_mark_dirty(c);
}

void connection_end_input(struct connection *c)
{
    if (c->closed || c->input_ended)
        return;
    read_input(c);
    while (!c->closed && c->channel && connection_read_ring(c))
        ;
    if (c->closed)
        return;
    c->input_ended = true;
    connection_mark_dirty(c);
}

static int flush_ring(struct connection *c)
{
    uint64_t position = c->channel->output.position;
    struct error e;

    if (rpc_channel_flush(c->channel, &e) < 0) {
        violation(c, &e);
        return -1;
    }
    c->server->counters.bytes_out += c->channel->output.position - position;
    return 0;
}

/* Descriptors of replies that the client does not read. */
static void count_waiting_fds(struct connection *c)
{
    if (c->fds_waiting == c->output.n_attachments)
        return;
    account_discharge(c->account, QUOTA_FDS, c->fds_waiting);
    c->fds_waiting = c->output.n_attachments;
    account_add(c->account, QUOTA_FDS, c->fds_waiting);
}

void connection_turn(struct connection *c)
{
    uint64_t position = c->output.position;

    if (c->input_left && process(c) < 0)
        return;
    if (c->channel)
        rpc_channel_settle(c->channel, &c->output);
    if (c->output.bytes.failed || (c->channel && c->channel->output.bytes.failed)) {
        connection_close(c, "replies do not fit into memory");
        return;
    }
    if (c->channel && flush_ring(c) < 0)
        return;
    if (rpc_output_flush(&c->output, c->fd) < 0) {
        connection_close(c, "the client is gone");
        return;
    }
    c->server->counters.bytes_out += c->output.position - position;
    count_waiting_fds(c);
    if (c->input_left && connection_may_read(c))
        connection_mark_dirty(c);
    update_poll(c);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct connection *c = poll->data;

    if (status < 0) {
        connection_close(c, "socket error");
        return;
    }
    if (events & UV_READABLE)
        read_input(c);
    if ((events & UV_DISCONNECT) && !c->reading && !c->closed) {
        connection_close(c, "the client hung up");
        return;
    }
    connection_mark_dirty(c);
}

/* ---- beginning and end ---- */

static void on_exit_of_peer(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    connection_close(poll->data, "its process ended");
}

static int pidfd_open_(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* Its user's account takes one more, with its socket and pidfd. */
static int charge_connection(struct connection *c, struct error *e)
{
    if (account_charge(c->account, c->pid, QUOTA_CONNECTIONS, 1, e) < 0)
        return -1;
    if (account_charge(c->account, c->pid, QUOTA_FDS, 2, e) == 0)
        return 0;
    account_discharge(c->account, QUOTA_CONNECTIONS, 1);
    return -1;
}

struct connection *connection_new(struct server *server, int fd)
{
    struct connection *c = calloc(1, sizeof(*c));
    struct ucred peer;
    socklen_t length = sizeof(peer);
    struct error e;

    if (!c)
        goto close_fd;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        goto free_connection;
    c->server = server;
    c->fd = fd;
    c->pidfd = -1;
    c->uid = peer.uid;
    c->gid = peer.gid;
    c->pid = peer.pid;
    c->connected_ns = clock_now_ns();
    if (access_enter(c, &e) < 0 || charge_connection(c, &e) < 0)
        goto turn_away;
    if (uv_poll_init(&server->loop, &c->poll, fd) < 0)
        goto discharge;
    c->open_handles = 1;
    c->poll.data = c;
    rpc_input_init(&c->input, server->config.message_bytes);
    rpc_output_init(&c->output, OUTPUT_MAX);
    idtable_init(&c->buffers, (uint32_t)server->config.buffers);
    idtable_init(&c->programs, (uint32_t)server->config.programs);
    idtable_init(&c->modules, (uint32_t)server->config.kernels);
    idtable_init(&c->kernels, (uint32_t)server->config.kernels);
    list_init(&c->link);
    list_init(&c->dirty_link);
    list_init(&c->hot_link);
    list_init(&c->recent_link);
    list_init(&c->inline_lru);
    list_init(&c->runs);
    list_init(&c->compiles);
    list_init(&c->barriers);
    for (unsigned i = 0; i < INLINE_BUCKETS; i++)
        list_init(&c->inline_buckets[i]);
    list_append(&server->connections, &c->link);
    server->n_connections++;
    server->counters.connections_total++;
    /* A forked child may keep the socket open; the process that connected is what counts. pid 0: it lives in
     * another pid namespace, and end of file must do. */
    if (peer.pid > 0 && (c->pidfd = pidfd_open_(peer.pid)) >= 0 &&
        uv_poll_init(&server->loop, &c->exit_poll, c->pidfd) == 0) {
        c->exit_poll.data = c;
        c->open_handles++;
        uv_poll_start(&c->exit_poll, UV_READABLE, on_exit_of_peer);
    }
    update_poll(c);
    event_connect(c);
    return c;

discharge:
    account_discharge(c->account, QUOTA_CONNECTIONS, 1);
    account_discharge(c->account, QUOTA_FDS, 2);
    access_leave(c);
free_connection:
    free(c);
close_fd:
    close(fd);
    return NULL;

turn_away:
    access_turn_away(fd, &e);
    access_leave(c);
    free(c);
    return NULL;
}

void connection_free_if_done(struct connection *c)
{
    if (!c->closed || c->inflight || c->open_handles)
        return;
    for (unsigned i = 0; i < STREAMS_MAX; i++)
        stream_free(c->streams[i]);
    account_discharge(c->account, QUOTA_FDS, c->fds_waiting + (c->timelines ? 1 : 0));
    timelines_close(c->server, c->timelines);
    free(c->latencies);
    access_leave(c);
    list_remove(&c->link);
    rpc_input_free(&c->input);
    rpc_output_free(&c->output);
    idtable_free(&c->buffers);
    idtable_free(&c->programs);
    idtable_free(&c->modules);
    idtable_free(&c->kernels);
    free(c);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct connection *c = handle->data;

    c->open_handles--;
    connection_free_if_done(c);
}

void connection_close(struct connection *c, const char *why)
{
    struct error ended;

    if (c->closed)
        return;
    c->closed = true;
    c->server->n_connections--;
    event_disconnect(c, why);
    list_remove(&c->dirty_link);
    spin_socket_closed(c);
    channel_close(c);
    uv_close((uv_handle_t *)&c->poll, on_handle_closed);
    if (c->open_handles == 2)
        uv_close((uv_handle_t *)&c->exit_poll, on_handle_closed);
    close(c->fd);
    if (c->pidfd >= 0)
        close(c->pidfd);
    c->fd = c->pidfd = -1;
    account_discharge(c->account, QUOTA_CONNECTIONS, 1);
    account_discharge(c->account, QUOTA_FDS, 2);
    rpc_input_free(&c->input);
    run_stop_all(c, RUN_ABANDONED);
    error_set(&ended, ERROR_CANCELLED, "the connection ended");
    compiles_stop(c, &ended);
    barriers_advance(c);
    connection_drop_all(c);
    connection_free_if_done(c);
}

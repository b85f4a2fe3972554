#include "server/peer/connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "server/code/module.h"
#include "server/control/busy_poll.h"
#include "server/exec/command_list.h"
#include "server/exec/run.h"
#include "server/exec/timeline.h"
#include "server/observe/events.h"
#include "server/observe/report.h"
#include "server/peer/access.h"
#include "server/peer/backlog.h"
#include "server/peer/listener.h"
#include "server/peer/peer_timeouts.h"
#include "server/peer/request.h"
#include "server/peer/ring.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/shortage.h"
#include "util/watch.h"

static void on_poll(uv_poll_t *poll, int status, int events);

/* ---- polling ---- */

/* Descriptors of one reply at most. So many may wait in the output, with those of the requests in flight. */
enum { REPLY_FDS = CHANNEL_FDS, WAITING_REPLY_FDS = RPC_OUTPUT_MAX_ATTACHMENTS - REPLY_FDS };
/* Of a message whose end has not come, while its user has no room. */
enum { INPUT_WITHOUT_ROOM = 4096 };

static bool has_credit(const struct connection *c)
{
    if (c->fd_replies + c->output.n_attachments > WAITING_REPLY_FDS)
        return false;
    return c->inflight < c->server->config.inflight && c->run_bodies.bytes + c->source_bytes <= RUN_BYTES_MAX &&
           backlog_admits(c);
}

bool connection_is_stuck(const struct connection *c)
{
    const uint64_t most = backlog_output_max(c);

    return buffer_length(&c->output.bytes) > most || (c->channel && rpc_channel_pending(c->channel) > most);
}

bool connection_may_read(const struct connection *c)
{
    return !c->input_ended && has_credit(c) && !connection_is_stuck(c);
}

/* Without credit a connection is read for requests that take none, as long as it is not known what comes. Where its
 * user has no room, only for small ones: a long `ping` must not grow what waits. */
static bool may_look(const struct connection *c, const struct rpc_input *in, bool waits)
{
    if (c->input_ended || connection_is_stuck(c))
        return false;
    return has_credit(c) || (!waits && (backlog_admits(c) || buffer_length(&in->bytes) < INPUT_WITHOUT_ROOM));
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

/* UV_DISCONNECT, so that the end of a client is seen also while it is not read. */
static int watch(struct connection *c)
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
    if (watch(c) < 0)
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
    if (watch(c) < 0)
        connection_close(c, "no memory to watch its socket");
}

void connection_mark_dirty(struct connection *c)
{
    if (!c->closed)
        schedule_add(&c->server->schedule, &c->account->turns, &c->task);
}

/* ---- output ---- */

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

/* Descriptors of replies that the client does not read. */
static void count_waiting_fds(struct connection *c)
{
    if (c->waiting_fds.amount != c->output.n_attachments)
        charge_note(&c->waiting_fds, c->output.n_attachments);
}

/* What has come, or a part of it. -1: the connection was closed. */
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
    reports_step(c);
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
    backlog_note(c);
    if (c->input_left && connection_may_look(c))
        connection_mark_dirty(c);
    barriers_advance(c);
    if (!list_empty(&c->reports) && list_empty(&c->report_link) && !connection_is_stuck(c))
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
            backlog_note(c); /* before others are looked at */
    }
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

/* A forked child may keep the socket open; the process that connected is what counts. */
static int watch_process(struct connection *c, struct error *e)
{
    int r;

    if (c->pid <= 0) /* in another pid namespace: end of file must do */
        return 0;
    c->pidfd = pidfd_open_(c->pid);
    if (c->pidfd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        return error_shortage(e, errno, "watching your process");
    if (c->pidfd < 0) /* it has ended, and somebody else has the socket; or this kernel has no such thing */
        return 0;
    r = uv_poll_init(&c->server->loop, &c->exit_poll, c->pidfd);
    if (r < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "watching your process: %s", uv_strerror(r));
    c->exit_poll.data = c;
    c->open_handles++;
    r = watch_start(&c->exit_poll, UV_READABLE, on_exit_of_peer);
    return r < 0 ? error_set(e, ERROR_OUT_OF_MEMORY, "watching your process: %s", uv_strerror(r)) : 0;
}

/* Its user's account takes one more, with its socket and pidfd. Both are given back at its close. */
static int charge_connection(struct connection *c, struct error *e)
{
    if (charge_take(&c->charge, c->account, c->pid, QUOTA_CONNECTIONS, 1, e) < 0)
        return -1;
    if (charge_take(&c->socket_fds, c->account, c->pid, QUOTA_FDS, 2, e) < 0)
        return -1;
    charge_count(&c->waiting_fds, c->account, QUOTA_FDS, 0);
    charge_count(&c->backlog, c->account, QUOTA_WAITING, 0);
    return 0;
}

static void give_back_charges(struct connection *c)
{
    charge_free(&c->charge);
    charge_free(&c->socket_fds);
    charge_free(&c->waiting_fds);
    charge_free(&c->backlog);
}

static void discard_fds(void *context, const int *fds, unsigned count)
{
    struct connection *c = context;

    account_close_fds(c->account, fds, count);
}

static void init(struct connection *c)
{
    const struct server_config *config = &c->server->config;

    c->poll.data = c;
    rpc_input_init(&c->input, config->message_bytes);
    c->input.discard = discard_fds;
    c->input.context = c;
    rpc_output_init(&c->output, OUTPUT_MAX);
    idtable_init(&c->buffers, (uint32_t)config->buffers);
    idtable_init(&c->programs, (uint32_t)config->programs);
    idtable_init(&c->modules, (uint32_t)config->kernels);
    idtable_init(&c->kernels, (uint32_t)config->kernels);
    list_init(&c->link);
    schedule_task_init(&c->task);
    list_init(&c->hot_link);
    list_init(&c->recent_link);
    list_init(&c->starved_link);
    list_init(&c->inline_lru);
    list_init(&c->runs);
    list_init(&c->compiles);
    list_init(&c->barriers);
    list_init(&c->reports);
    list_init(&c->report_link);
    for (unsigned i = 0; i < INLINE_BUCKETS; i++)
        list_init(&c->inline_buckets[i]);
    for (unsigned i = 0; i < PEER_TIMEOUT_COUNT; i++)
        list_init(&c->waits[i].link);
}

/* Who it is, and whether its user may have one more. Refusals of these kinds have their own lines in the log. */
static int identify(struct connection *c, struct error *e)
{
    struct ucred peer;
    socklen_t length = sizeof(peer);

    if (getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        return error_set(e, ERROR_INTERNAL, "asking who you are: %s", strerror(errno));
    c->uid = peer.uid;
    c->gid = peer.gid;
    c->pid = peer.pid;
    if (access_enter(c, e) < 0)
        goto leave;
    c->run_bodies = (struct command_memory){.account = c->account, .quota = QUOTA_WAITING};
    c->program_bodies = (struct command_memory){.account = c->account, .quota = QUOTA_PROGRAMS};
    if (charge_connection(c, e) == 0)
        return 0;
    give_back_charges(c);
leave:
    access_leave(c);
    return -1;
}

struct connection *connection_new(struct server *server, int fd, struct error *e)
{
    struct connection *c = calloc(1, sizeof(*c));

    if (!c) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for another connection; try again later");
        listener_log_refusal(server, fd, e);
        return NULL;
    }
    c->server = server;
    c->fd = fd;
    c->pidfd = -1;
    c->connected_ns = clock_now_ns();
    init(c);
    if (identify(c, e) < 0)
        goto free_connection;
    if (uv_poll_init(&server->loop, &c->poll, fd) < 0) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory to watch your socket; try again later");
        goto discharge;
    }
    c->open_handles = 1;
    list_append(&server->connections, &c->link);
    server->n_connections++;
    c->reading = true;
    if (watch_process(c, e) < 0)
        goto close_connection;
    if (watch(c) < 0) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory to watch your socket; try again later");
        goto close_connection;
    }
    server->counters.connections_total++;
    event_connect(c);
    return c;

close_connection:
    listener_log_refusal(server, fd, e);
    c->fd = -1; /* the caller's */
    connection_close(c, "it cannot be served");
    return NULL;
discharge:
    listener_log_refusal(server, fd, e);
    give_back_charges(c);
    access_leave(c);
free_connection:
    free(c);
    return NULL;
}

void connection_free_if_done(struct connection *c)
{
    if (!c->closed || c->inflight || c->open_handles)
        return;
    for (unsigned i = 0; i < STREAMS_MAX; i++)
        stream_free(c->streams[i]);
    timelines_close(c->server, c->timelines);
    free(c->latencies);
    rpc_input_free(&c->input);
    rpc_output_free(&c->output);
    give_back_charges(c);
    access_leave(c);
    reports_pass_by(c);
    list_remove(&c->link);
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
    schedule_remove(&c->account->turns, &c->task);
    peer_timeouts_forget(c);
    backlog_forget(c);
    recent_socket_closed(c);
    channel_close(c);
    uv_close((uv_handle_t *)&c->poll, on_handle_closed);
    if (c->open_handles == 2)
        uv_close((uv_handle_t *)&c->exit_poll, on_handle_closed);
    if (c->fd >= 0)
        account_close_socket(c->account, c->fd);
    if (c->pidfd >= 0)
        close(c->pidfd);
    c->fd = c->pidfd = -1;
    charge_free(&c->charge);
    charge_free(&c->socket_fds);
    rpc_input_free(&c->input);
    run_stop_all(c, RUN_ABANDONED);
    error_set(&ended, ERROR_CANCELLED, "the connection ended");
    compiles_stop(c, &ended);
    barriers_advance(c);
    reports_abandon(c);
    connection_drop_all(c);
    connection_free_if_done(c);
}

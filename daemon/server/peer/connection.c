#include "server/peer/connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "server/peer/access.h"
#include "server/peer/back_pressure.h"
#include "server/peer/peers.h"
#include "server/peer/request.h"
#include "server/peer/room.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/log.h"
#include "util/loop.h"

static int connection_watch_socket(struct connection *c);

static void on_exit_of_peer(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    connection_close(poll->data, "its process ended");
}

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 has it; the C library may be older */
#endif

/* The process that connected: also one of another pid namespace, which has no number here, and never another one that
 * has got its number since. Older kernels know a process by its number only. -1: it has ended, or cannot be known. */
static int open_peer(const struct connection *c)
{
    int fd = -1;
    socklen_t length = sizeof(fd);

    if (getsockopt(c->fd, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0)
        return fd; /* close-on-exec, as all pidfds are */
    if (errno != ENOPROTOOPT)
        return -1;
    if (c->pid > 0)
        return (int)syscall(SYS_pidfd_open, c->pid, 0);
    errno = ESRCH;
    return -1;
}

/* Watches the process that connected, and ends the connection with it: a forked child may keep the socket open. */
static int watch_process(struct connection *c, struct error *e)
{
    int r;

    c->pidfd = open_peer(c);
    if (c->pidfd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        return error_shortage(e, errno, "watching your process");
    if (c->pidfd < 0) /* the process has ended and another one has the socket, or the kernel does not tell: end of file
                       * must do */
        return 0;
    r = uv_poll_init(&c->server->loop, &c->exit_poll, c->pidfd);
    if (r < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "watching your process: %s", uv_strerror(r));
    c->exit_poll.data = c;
    c->open_handles++;
    r = watch_start(&c->exit_poll, UV_READABLE, on_exit_of_peer);
    return r < 0 ? error_set(e, ERROR_OUT_OF_MEMORY, "watching your process: %s", uv_strerror(r)) : 0;
}

/* Charges the user for the connection, its socket and its pidfd. Closing the connection gives these back. */
static int charge_connection(struct connection *c, struct error *e)
{
    if (charge_take(&c->charge, c->account, c->pid, QUOTA_CONNECTIONS, 1, e) < 0)
        return -1;
    if (charge_take(&c->socket_fds, c->account, c->pid, QUOTA_FDS, 2, e) < 0)
        return -1;
    charge_count(&c->waiting_fds, c->account, QUOTA_FDS, 0);
    charge_count(&c->buffered, c->account, QUOTA_WAITING, 0);
    return 0;
}

static void give_back_charges(struct connection *c)
{
    charge_free(&c->charge);
    charge_free(&c->socket_fds);
    charge_free(&c->waiting_fds);
    charge_free(&c->buffered);
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
    list_init(&c->link);
    list_init(&c->done_link);
    schedule_task_init(&c->task);
    list_init(&c->hot_link);
    list_init(&c->recent_link);
    list_init(&c->paused_link);
    list_init(&c->unfinished);
    list_init(&c->barriers);
    list_init(&c->long_replies);
    list_init(&c->long_reply_link);
    for (unsigned i = 0; i < PEER_TIMEOUT_COUNT; i++)
        list_init(&c->waits[i].link);
}

/* Asks the kernel for the peer's ids, and checks that its user may have one more connection. These refusals have their
 * own lines in the log. */
static int identify(struct connection *c, struct error *e)
{
    struct ucred peer;
    socklen_t length = sizeof(peer);

    if (getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        return error_set(e, ERROR_INTERNAL, "asking who you are: %s", strerror(errno));
    c->peer_uid = peer.uid;
    c->uid = c->identity ? c->identity->number : peer.uid;
    c->gid = peer.gid;
    c->pid = peer.pid;
    if (access_enter(c, e) < 0)
        goto leave;
    if (charge_connection(c, e) == 0)
        return 0;
    give_back_charges(c);
leave:
    access_leave(c);
    return -1;
}

static void free_parts(struct connection *c)
{
    for (const struct connection_part *const *part = c->server->peers->parts; *part; part++)
        if ((*part)->free)
            (*part)->free(c);
}

/* Begins the rooms' parts; a part may use those of the rooms below. free_parts() gives back all that was begun, also
 * after a failure. */
static int begin_parts(struct connection *c, struct error *e)
{
    for (const struct connection_part *const *part = c->server->peers->parts; *part; part++)
        if ((*part)->begin && (*part)->begin(c, e) < 0) {
            free_parts(c);
            return -1;
        }
    return 0;
}

/* Ends the parts from the highest room down: a part gives back resources of lower rooms. */
static void end_parts(struct connection *c)
{
    const struct connection_part *const *first = c->server->peers->parts, *const *part = first;

    while (*part)
        part++;
    while (part-- != first)
        if ((*part)->end)
            (*part)->end(c);
}

struct connection *connection_new(struct server *server, int fd, const struct identity *identity, struct error *e)
{
    struct connection *c = calloc(1, sizeof(*c));

    if (!c) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for another connection; try again later");
        event_turned_away(server, fd, e);
        return NULL;
    }
    c->server = server;
    c->fd = fd;
    c->identity = identity;
    c->pidfd = -1;
    c->connected_ns = clock_now_ns();
    init(c);
    if (identify(c, e) < 0)
        goto free_connection;
    if (begin_parts(c, e) < 0)
        goto discharge;
    if (uv_poll_init(&server->loop, &c->poll, fd) < 0) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory to watch your socket; try again later");
        goto free_parts;
    }
    c->open_handles = 1;
    list_append(&server->peers->connections, &c->link);
    server->peers->n_connections++;
    c->reading = true;
    if (watch_process(c, e) < 0)
        goto close_connection;
    if (connection_watch_socket(c) < 0) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory to watch your socket; try again later");
        goto close_connection;
    }
    c->number = ++server->counters.connections_total;
    c->isolation = access_isolation(c);
    event_connect(c);
    return c;

close_connection:
    event_turned_away(server, fd, e);
    c->fd = -1; /* the caller keeps it */
    connection_close(c, "it cannot be served");
    return NULL;
free_parts:
    free_parts(c);
discharge:
    event_turned_away(server, fd, e);
    give_back_charges(c);
    access_leave(c);
free_connection:
    free(c);
    return NULL;
}

void connection_note_done(struct connection *c)
{
    if (c->closed && !c->inflight && !c->open_handles && list_empty(&c->done_link))
        list_append(&c->server->peers->done, &c->done_link);
}

static void connection_free(struct connection *c)
{
    if (c->server->peers->last_asker == c)
        c->server->peers->last_asker = NULL;
    list_remove(&c->done_link);
    free_parts(c);
    rpc_input_free(&c->input);
    rpc_output_free(&c->output);
    give_back_charges(c);
    access_leave(c);
    list_remove(&c->link);
    free(c);
}

void connections_free_done(struct server *s)
{
    while (!list_empty(&s->peers->done))
        connection_free(list_entry(list_first(&s->peers->done), struct connection, done_link));
}

/* ---- its ring ---- */

enum { KEPT_FDS = 2 }; /* descriptors of a channel: doorbell and wake pipe */

void ring_heat(struct connection *c)
{
    c->ring_active_ns = clock_now_ns();
    if (list_empty(&c->hot_link))
        list_append(&c->server->peers->hot, &c->hot_link);
}

static void give_back(struct connection *c)
{
    charge_free(&c->doorbell_fds);
    charge_free(&c->ring_bytes);
    host_room_give(&c->server->host_room, &c->ring_room);
}

int ring_open(struct connection *c, int ret_fds[CHANNEL_FDS], struct error *e)
{
    struct epoll_event bell = {.events = EPOLLIN | EPOLLET, .data.ptr = c};
    struct rpc_channel *channel;

    if (c->channel) {
        error_set(e, ERROR_INVALID_ARGUMENT, "shm: this connection has its shared memory already");
        return error_detail_text(e, "key", "shm");
    }
    if (charge_take(&c->doorbell_fds, c->account, c->pid, QUOTA_FDS, KEPT_FDS, e) < 0 ||
        charge_take(&c->ring_bytes, c->account, c->pid, QUOTA_HOST, RPC_CHANNEL_BYTES, e) < 0 ||
        host_room_take(&c->server->host_room, c->account, RPC_CHANNEL_BYTES, 0, &c->ring_room, e) < 0)
        goto discharge;
    if (rpc_channel_new(c->server->config.message_bytes, OUTPUT_MAX, &channel, ret_fds, e) < 0)
        goto discharge;
    if (epoll_ctl(c->server->peers->doorbells, EPOLL_CTL_ADD, channel->doorbell, &bell) < 0) {
        error_shortage(e, errno, "watching the doorbell");
        for (unsigned i = 0; i < CHANNEL_FDS; i++)
            close(ret_fds[i]);
        rpc_channel_free(channel);
        goto discharge;
    }
    channel->waker = c->server->peers->waker;
    c->channel = channel;
    ring_heat(c);
    return 0;

discharge:
    give_back(c);
    return -1;
}

static void ring_close(struct connection *c)
{
    if (!c->channel)
        return;
    list_remove(&c->hot_link);
    epoll_ctl(c->server->peers->doorbells, EPOLL_CTL_DEL, c->channel->doorbell, NULL);
    c->channel = rpc_channel_free(c->channel);
    give_back(c);
}

/* ---- its end ---- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct connection *c = handle->data;

    c->open_handles--;
    connection_note_done(c);
}

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

void connection_close(struct connection *c, const char *why)
{
    if (c->closed)
        return;
    c->closed = true;
    c->server->peers->n_connections--;
    event_disconnect(c, why);
    schedule_remove(&c->account->turns, &c->task);
    peer_timeouts_forget(c);
    user_pressure_forget(c);
    recent_socket_forget(c);
    ring_close(c);
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
    end_parts(c);
    barriers_advance(c);
    long_replies_abandon(c);
    connection_note_done(c);
}

uint64_t connection_domain(const struct connection *c)
{
    switch (c->isolation) {
    case ISOLATE_USER:
        return domain_of(c->uid, 0);
    case ISOLATE_CONNECTION:
        return domain_of(c->uid, c->number);
    case ISOLATE_NONE:
    case ISOLATE_COUNT:
        break;
    }
    return DOMAIN_COMMON;
}

enum isolation domain_kind(uint64_t domain, uint64_t *ret_number)
{
    const bool of_connection = domain_is_of_connection(domain);

    *ret_number = of_connection ? domain_connection(domain) : domain_owner(domain);
    if (domain == DOMAIN_COMMON)
        return ISOLATE_NONE;
    return of_connection ? ISOLATE_CONNECTION : ISOLATE_USER;
}

/* ---- connection turn ---- */

static void on_poll(uv_poll_t *poll, int status, int events);

/* ---- watching the socket ---- */

/* UV_DISCONNECT, so that the end of a client is seen also while it is not read. */
static int connection_watch_socket(struct connection *c)
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

/* ---- recent sockets ---- */

enum { SOCKETS_MAX = 4 };

void recent_socket_forget(struct connection *c)
{
    if (list_empty(&c->recent_link))
        return;
    list_remove(&c->recent_link);
    c->server->peers->n_recent--;
    c->recent_hits = 0;
    connection_watch(c);
}

void recent_socket_used(struct connection *c)
{
    struct server *s = c->server;

    s->active = true;
    if (!s->config.spin_us)
        return;
    c->input_active_ns = 0;
    if (!list_empty(&c->recent_link))
        return;
    if (s->peers->n_recent == SOCKETS_MAX) {
        s->peers->overflowed_ns = clock_now_ns();
        recent_socket_forget(list_entry(list_first(&s->peers->recent), struct connection, recent_link));
    }
    list_append(&s->peers->recent, &c->recent_link);
    s->peers->n_recent++;
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

uint64_t connection_bytes_in(const struct connection *c)
{
    uint64_t bytes = c->input.position + buffer_length(&c->input.bytes);

    if (c->channel)
        bytes += c->channel->input.position + buffer_length(&c->channel->input.bytes);
    return bytes;
}

uint64_t connection_bytes_out(const struct connection *c)
{
    return c->output.position + (c->channel ? c->channel->output.position : 0);
}

#include "server/peer/peers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/peer/access.h"
#include "server/peer/back_pressure.h"
#include "server/peer/connection.h"
#include "server/peer/listener.h"
#include "server/peer/room.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/log.h"
#include "util/loop.h"

/* ---- rings: connections' shared memory, and how each is watched ----
 *
 * A ring that was busy lately is hot: every turn of the loop looks into it, and its client need not ring the doorbell.
 * Every other ring sleeps until its doorbell rings. */

enum { KEPT_FDS = 2 }; /* descriptors of a channel: doorbell and wake pipe */
enum { BELLS_A_LOOK = 64, COOLS_AFTER_US = 10000 };

static void heat(struct connection *c)
{
    c->ring_active_ns = clock_now_ns();
    if (list_empty(&c->hot_link))
        list_append(&c->server->peers->hot, &c->hot_link);
}

/* ---- doorbells ---- */

/* Doorbells are watched for edges, and their counters are never read: clients can do anything with those. */
static void on_doorbells(uv_poll_t *poll, int status, int events)
{
    struct server *s = poll->data;
    struct epoll_event bells[BELLS_A_LOOK];
    int n = epoll_wait(s->peers->doorbells, bells, BELLS_A_LOOK, 0);

    (void)status;
    (void)events;
    for (int i = 0; i < n; i++) {
        struct connection *c = bells[i].data.ptr;

        rpc_channel_wake(c->channel);
        heat(c);
        connection_mark_dirty(c); /* the client may have rung after making room for replies */
    }
}

static int rings_start(struct server *s, struct error *e)
{
    list_init(&s->peers->hot);
    /* A waker is one more busy thread: only where the daemon polls, and so has processors to spare. */
    if (s->config.spin_us && waker_new(&s->peers->waker, e) < 0)
        return -1;
    s->peers->doorbells = epoll_create1(EPOLL_CLOEXEC);
    if (s->peers->doorbells < 0 || uv_poll_init(&s->loop, &s->peers->doorbells_poll, s->peers->doorbells) < 0)
        return error_set(e, ERROR_INTERNAL, "the event loop cannot be set up"); /* rings_free() follows */
    s->peers->doorbells_poll.data = s;
    if (watch_start(&s->peers->doorbells_poll, UV_READABLE, on_doorbells) < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to watch doorbells");
    return 0;
}

static void rings_stop(struct server *s)
{
    uv_close((uv_handle_t *)&s->peers->doorbells_poll, NULL);
}

/* Call it after the loop's end. */
static void rings_free(struct server *s)
{
    s->peers->waker = waker_free(s->peers->waker);
    close(s->peers->doorbells);
}

/* ---- one connection's ---- */

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
    heat(c);
    return 0;

discharge:
    give_back(c);
    return -1;
}

void ring_close(struct connection *c)
{
    if (!c->channel)
        return;
    list_remove(&c->hot_link);
    epoll_ctl(c->server->peers->doorbells, EPOLL_CTL_DEL, c->channel->doorbell, NULL);
    c->channel = rpc_channel_free(c->channel);
    give_back(c);
}

/* ---- polling and sleeping ---- */

static void rings_poll(struct server *s)
{
    uint64_t now = 0;

    waker_turn(s->peers->waker);
    list_for_each_safe (node, after, &s->peers->hot) {
        struct connection *c = list_entry(node, struct connection, hot_link);

        if (rpc_channel_pending(c->channel))
            connection_mark_dirty(c);
        if (connection_may_look_at_ring(c) && (c->ring_left || rpc_channel_has(c->channel))) {
            c->ring_active_ns = 0; /* set below, when the ring is next found empty */
            s->active = true;
            c->ring_ready = true;
            connection_mark_dirty(c);
            continue;
        }
        now = now ? now : clock_now_ns();
        if (!c->ring_active_ns)
            c->ring_active_ns = now;
        else if (now - c->ring_active_ns > COOLS_AFTER_US * UINT64_C(1000) && connection_may_look_at_ring(c) &&
                 rpc_channel_sleep(c->channel))
            list_remove(&c->hot_link);
    }
}

bool peers_sleep(struct server *s)
{
    list_for_each_safe (node, after, &s->peers->hot) {
        struct connection *c = list_entry(node, struct connection, hot_link);

        /* A paused ring stays hot: the event that ends its pause wakes the loop. */
        if (!connection_may_look_at_ring(c))
            continue;
        if (c->ring_left || !rpc_channel_sleep(c->channel))
            return false;
        list_remove(&c->hot_link);
    }
    return true;
}

/* ---- the room ---- */

int peers_new(struct server *s, int fd, const struct method_entry *methods, const struct connection_part *const *parts,
              struct error *e)
{
    struct peers *p = s->peers = calloc(1, sizeof(*p));

    if (!p) {
        close(fd);
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start");
    }
    p->methods = methods;
    p->parts = parts;
    for (unsigned i = 0; i < METHOD_COUNT; i++)
        if (methods[i].state_bytes && *methods[i].state_bytes > p->state_bytes)
            p->state_bytes = *methods[i].state_bytes;
    p->doorbells = -1;
    list_init(&p->connections);
    list_init(&p->done);
    list_init(&p->recent);
    return listener_begin(s, fd, e);
}

int peers_start(struct server *s, struct error *e)
{
    peer_timeouts_init(s);
    user_pressure_init(s);
    return rings_start(s, e);
}

void peers_stop(struct server *s)
{
    rings_stop(s);
    peer_timeouts_stop(s);
    user_pressure_stop(s);
}

void peers_free(struct server *s)
{
    struct peers *p = s->peers;

    if (!p)
        return;
    rings_free(s);
    listener_free(s);
    while (p->free_requests) {
        struct request *r = p->free_requests;

        p->free_requests = r->next;
        free(r);
    }
    free(p);
    s->peers = NULL;
}

void peers_poll(struct server *s)
{
    rings_poll(s);
}

static void serve(struct schedule_task *task)
{
    connection_turn(list_entry(task, struct connection, task));
}

void peers_serve(struct server *s)
{
    schedule_turn(&s->schedule, serve);
    user_pressure_turn(s);
    connections_free_done(s);
}

void peers_reload(struct server *s)
{
    list_for_each_safe (node, after, &s->peers->connections) {
        struct connection *c = list_entry(node, struct connection, link);
        struct error e;

        if (access_renew(c, &e) < 0 && !c->closed)
            connection_fail(c, &e, "not allowed any more");
    }
    peer_timeouts_reload(s);
}

/* -1: it is not served; *e says why. */
static int set_socket(struct server *s, const struct server_socket *socket, struct error *e)
{
    struct identity *identity = identities_get(&s->accounts.identities, socket->identity, e);

    if (!identity) {
        if (socket->fd >= 0)
            close(socket->fd);
        return -1;
    }
    identity->rights = socket->rights;
    identity->limits = socket->limits;
    if (socket->fd >= 0) {
        listener_remove(s, identity);
        if (listener_add(s, socket->fd, identity, e) < 0)
            return -1;
    }
    identity->open = true;
    return 0;
}

void peers_set_sockets(struct server *s, const struct server_socket *sockets, unsigned n)
{
    struct identities *all = &s->accounts.identities;
    struct error e;

    for (unsigned i = 0; i < all->count; i++)
        identities_find(all, IDENTITY_FIRST + i)->open = false;
    for (unsigned i = 0; i < n; i++)
        if (set_socket(s, &sockets[i], &e) < 0)
            log_error("socket", "identity=%s why=\"%s\"", sockets[i].identity, e.message);
    for (unsigned i = 0; i < all->count; i++)
        if (!identities_find(all, IDENTITY_FIRST + i)->open)
            listener_remove(s, identities_find(all, IDENTITY_FIRST + i));
    list_for_each_safe (node, after, &s->peers->connections) {
        struct connection *c = list_entry(node, struct connection, link);

        if (c->identity && !c->closed && access_renew(c, &e) < 0)
            connection_fail(c, &e, "its socket is not served any more");
        else if (c->identity && !c->closed)
            connection_mark_dirty(c); /* a higher quota may resume it */
    }
}

struct list *peers_connections(const struct server *s)
{
    return &s->peers->connections;
}

unsigned peers_open_connections(const struct server *s)
{
    return s->peers->n_connections;
}

bool peers_last_waits(const struct server *s)
{
    const struct connection *c = s->peers->last_asker;

    return c && c->inflight > 0;
}

/* ---- events ---- */

enum { QUOTED_MAX = 4 * CLIENT_NAME_MAX + 3 };

static bool pass(struct log_limit *limit, uint64_t now_ns, unsigned *ret_held_back)
{
    return log_limit_pass(limit, now_ns, EVENTS_A_SECOND, ret_held_back);
}

static const char *quoted_client(const struct connection *c, char into[QUOTED_MAX])
{
    return log_quote(into, QUOTED_MAX, c->client, strlen(c->client));
}

void event_connect(struct connection *c)
{
    char who[CONNECTION_WHO_MAX];
    unsigned held_back;

    if (log_enabled(LOG_LEVEL_DEBUG) && pass(&c->server->peers->connect_limit, c->connected_ns, &held_back))
        log_debug("connect", "%s held_back=%u", connection_who(c, who), held_back);
}

void event_disconnect(struct connection *c, const char *why)
{
    char client[QUOTED_MAX], who[CONNECTION_WHO_MAX];
    unsigned held_back;
    uint64_t now;

    if (!log_enabled(LOG_LEVEL_DEBUG))
        return;
    now = clock_now_ns();
    if (pass(&c->server->peers->disconnect_limit, now, &held_back))
        log_debug("disconnect",
                  "%s client=%s why=\"%s\" inflight=%u requests=%llu errors=%llu connected_s=%.3f held_back=%u",
                  connection_who(c, who), quoted_client(c, client), why, c->inflight, (unsigned long long)c->requests,
                  (unsigned long long)c->errors, clock_us_between(c->connected_ns, now) * 1e-6, held_back);
}

void event_protocol_error(struct connection *c, const struct error *e)
{
    char client[QUOTED_MAX], why[2 * ERROR_MESSAGE_MAX], who[CONNECTION_WHO_MAX];
    unsigned held_back;

    if (pass(&c->server->peers->protocol_limit, clock_now_ns(), &held_back))
        log_warning("protocol_error", "%s client=%s why=%s held_back=%u", connection_who(c, who),
                    quoted_client(c, client), log_quote(why, sizeof(why), e->message, strlen(e->message)), held_back);
}

static bool is_fault(enum error_code code)
{
    return code == ERROR_MEMORY_FAULT || code == ERROR_DEVICE_ERROR || code == ERROR_DEVICE_LOST ||
           code == ERROR_JOB_TIMEOUT || code == ERROR_DEVICE_FAULT || code == ERROR_INTERNAL;
}

void event_fault(const struct connection *c, const char *uuid, const char *op, const struct error *e)
{
    char client[QUOTED_MAX], why[2 * ERROR_MESSAGE_MAX], who[CONNECTION_WHO_MAX];
    unsigned held_back;

    if (!is_fault(e->code))
        return;
    c->server->totals.faults++;
    if (pass(&c->server->peers->fault_limit, clock_now_ns(), &held_back))
        log_warning("fault", "code=%s uuid=%s op=%s %s client=%s why=%s held_back=%u", error_code_name(e->code), uuid,
                    op, connection_who(c, who), quoted_client(c, client),
                    log_quote(why, sizeof(why), e->message, strlen(e->message)), held_back);
}

void event_turned_away(struct server *s, int fd, const struct error *e)
{
    struct ucred peer = {.pid = 0, .uid = (uid_t)-1};
    socklen_t length = sizeof(peer);
    unsigned held_back;

    s->totals.turned_away++;
    if (!log_limit_pass(&s->peers->refuse_limit, clock_now_ns(), REFUSALS_A_SECOND, &held_back))
        return;
    if (fd >= 0)
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length);
    log_warning("refuse", "why=\"%s\" pid=%d uid=%d code=%s connections=%u held_back=%u", e->message, (int)peer.pid,
                (int)peer.uid, error_code_name(e->code), s->peers->n_connections, held_back);
}

/* ---- recent sockets ---- */

enum { SOCKETS_MAX = 4, UNWATCHED_AFTER = 16 /* looks with input, in a row */ };

bool recent_sockets_any(const struct server *s)
{
    return s->peers->n_recent > 0;
}

bool recent_sockets_are_many(const struct server *s, uint64_t now)
{
    return now < s->peers->overflowed_ns + s->config.spin_us * 1000;
}

static void forget(struct connection *c)
{
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
        forget(list_entry(list_first(&s->peers->recent), struct connection, recent_link));
    }
    list_append(&s->peers->recent, &c->recent_link);
    s->peers->n_recent++;
}

void recent_socket_closed(struct connection *c)
{
    if (!list_empty(&c->recent_link))
        forget(c);
}

void recent_sockets_read(struct server *s, uint64_t now)
{
    list_for_each_safe (node, after, &s->peers->recent) {
        struct connection *c = list_entry(node, struct connection, recent_link);

        if (!c->input_active_ns)
            c->input_active_ns = now;
        if (now > c->input_active_ns + s->config.spin_us * 1000) {
            forget(c);
            continue;
        }
        if (!connection_may_look(c))
            continue;
        if (!schedule_begin_at_once(&s->schedule, &c->account->turns)) {
            c->readable = true;
            connection_mark_dirty(c);
            continue;
        }
        connection_read_socket(c);
        if (!c->input_active_ns && ++c->recent_hits == UNWATCHED_AFTER)
            connection_unwatch(c);
    }
}

void recent_sockets_watch(struct server *s)
{
    list_for_each_safe (node, after, &s->peers->recent) {
        struct connection *c = list_entry(node, struct connection, recent_link);

        c->recent_hits = 0;
        connection_watch(c);
    }
}

#include "server/peer/peers.h"

#include <stdlib.h>
#include <sys/epoll.h>
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

enum { BELLS_A_LOOK = 64, COOLS_AFTER_US = 10000 };

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
        ring_heat(c);
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
        return error_set(e, ERROR_INTERNAL, "the event loop cannot be set up"); /* peers_free() follows */
    s->peers->doorbells_poll.data = s;
    if (watch_start(&s->peers->doorbells_poll, UV_READABLE, on_doorbells) < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to watch doorbells");
    return 0;
}

/* ---- polling and sleeping ---- */

void peers_poll(struct server *s)
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
    uv_close((uv_handle_t *)&s->peers->doorbells_poll, NULL);
    peer_timeouts_stop(s);
    user_pressure_stop(s);
}

void peers_free(struct server *s)
{
    struct peers *p = s->peers;

    if (!p)
        return;
    p->waker = waker_free(p->waker);
    close(p->doorbells);
    listener_free(s);
    while (p->free_requests) {
        struct request *r = p->free_requests;

        p->free_requests = r->next;
        free(r);
    }
    free(p);
    s->peers = NULL;
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

/* ---- recent sockets ---- */

enum { UNWATCHED_AFTER = 16 /* looks with input, in a row */ };

bool recent_sockets_any(const struct server *s)
{
    return s->peers->n_recent > 0;
}

bool recent_sockets_are_many(const struct server *s, uint64_t now)
{
    return now < s->peers->overflowed_ns + s->config.spin_us * 1000;
}

void recent_sockets_read(struct server *s, uint64_t now)
{
    list_for_each_safe (node, after, &s->peers->recent) {
        struct connection *c = list_entry(node, struct connection, recent_link);

        if (!c->input_active_ns)
            c->input_active_ns = now;
        if (now > c->input_active_ns + s->config.spin_us * 1000) {
            recent_socket_forget(c);
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

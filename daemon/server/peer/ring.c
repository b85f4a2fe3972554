#include "server/peer/ring.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "server/peer/back_pressure.h"
#include "server/peer/connection.h"
#include "server/peer/peers.h"
#include "server/peer/room.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/loop.h"

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

int rings_start(struct server *s, struct error *e)
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

void rings_stop(struct server *s)
{
    uv_close((uv_handle_t *)&s->peers->doorbells_poll, NULL);
}

void rings_free(struct server *s)
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

void rings_poll(struct server *s)
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

#include "server/peer/recent_sockets.h"

#include "server/peer/back_pressure.h"
#include "server/peer/room.h"
#include "util/clock.h"

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

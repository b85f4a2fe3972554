#include "server/peer/peers.h"

#include <stdlib.h>
#include <unistd.h>

#include "server/peer/access.h"
#include "server/peer/back_pressure.h"
#include "server/peer/listener.h"
#include "server/peer/peer_timeouts.h"
#include "server/peer/ring.h"
#include "server/peer/room.h"
#include "server/peer/user_pressure.h"

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

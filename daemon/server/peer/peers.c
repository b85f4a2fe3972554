#include "server/peer/peers.h"

#include <stdlib.h>
#include <unistd.h>

#include "server/peer/access.h"
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

struct list *peers_connections(const struct server *s)
{
    return &s->peers->connections;
}

unsigned peers_open_connections(const struct server *s)
{
    return s->peers->n_connections;
}

#include "server/peer/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/peer/access.h"
#include "server/peer/back_pressure.h"
#include "server/peer/listener.h"
#include "server/peer/peer_timeouts.h"
#include "server/peer/ring.h"
#include "server/peer/room.h"
#include "util/clock.h"
#include "util/log.h"

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

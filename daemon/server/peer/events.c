/* Events of clients as lines of the log, and the names of peers in them. Thread: loop. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/peer/peers.h"
#include "server/peer/room.h"
#include "util/clock.h"
#include "util/log.h"

void connection_name_process(struct connection *c)
{
    char path[40];
    ssize_t n;
    int fd;

    if (c->comm_known)
        return;
    c->comm_known = true;
    snprintf(path, sizeof(path), "/proc/%d/comm", (int)c->pid);
    fd = c->pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    n = read(fd, c->comm, sizeof(c->comm) - 1);
    close(fd);
    c->comm[n > 0 ? n : 0] = '\0';
    c->comm[strcspn(c->comm, "\n")] = '\0';
}

const char *connection_who(const struct connection *c, char into[CONNECTION_WHO_MAX])
{
    snprintf(into, CONNECTION_WHO_MAX, "pid=%d uid=%u%s%s", (int)c->pid, (unsigned)c->peer_uid,
             c->identity ? " identity=" : "", c->identity ? c->identity->name : "");
    return into;
}

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

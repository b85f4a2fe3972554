#include "server/events.h"

#include <stdio.h>
#include <string.h>

#include "util/clock.h"
#include "util/log.h"

enum { QUOTED_MAX = 4 * CLIENT_NAME_MAX + 3, HELD_BACK_MAX = 32 };

/* Whether a line may be written; `into` says then how many could not be since the last one, or nothing. */
static bool pass(struct server *s, struct log_limit *limit, uint64_t now_ns, char into[HELD_BACK_MAX])
{
    unsigned held_back;

    if (!log_limit_pass(limit, now_ns, EVENTS_A_SECOND, &held_back)) {
        s->totals.lines_held_back++;
        return false;
    }
    into[0] = '\0';
    if (held_back)
        snprintf(into, HELD_BACK_MAX, " held_back=%u", held_back);
    return true;
}

static const char *quoted_client(const struct connection *c, char into[QUOTED_MAX])
{
    return log_quote(into, QUOTED_MAX, c->client, strlen(c->client));
}

void event_connect(struct connection *c)
{
    char more[HELD_BACK_MAX];

    if (log_enabled(LOG_LEVEL_DEBUG) && pass(c->server, &c->server->connect_limit, c->connected_ns, more))
        log_debug("connect", "pid=%d uid=%d%s", (int)c->pid, (int)c->uid, more);
}

void event_disconnect(struct connection *c, const char *why)
{
    char client[QUOTED_MAX], more[HELD_BACK_MAX];
    uint64_t now;

    if (!log_enabled(LOG_LEVEL_DEBUG))
        return;
    now = clock_now_ns();
    if (pass(c->server, &c->server->disconnect_limit, now, more))
        log_debug("disconnect",
                  "pid=%d uid=%d client=%s why=\"%s\" inflight=%u requests=%llu errors=%llu connected_s=%.3f%s",
                  (int)c->pid, (int)c->uid, quoted_client(c, client), why, c->inflight, (unsigned long long)c->requests,
                  (unsigned long long)c->errors, clock_us_between(c->connected_ns, now) * 1e-6, more);
}

static bool is_fault(enum error_code code)
{
    return code == ERROR_MEMORY_FAULT || code == ERROR_DEVICE_ERROR || code == ERROR_DEVICE_LOST ||
           code == ERROR_JOB_TIMEOUT || code == ERROR_INTERNAL;
}

void event_fault(const struct request *r, const struct error *e)
{
    const struct connection *c = r->connection;
    const struct run *run = &r->run;
    char client[QUOTED_MAX], why[2 * ERROR_MESSAGE_MAX], more[HELD_BACK_MAX];

    if (!is_fault(e->code))
        return;
    c->server->totals.faults++;
    if (pass(c->server, &c->server->fault_limit, clock_now_ns(), more))
        log_warning("fault", "code=%s uuid=%s op=%s pid=%d uid=%d client=%s why=%s%s", error_code_name(e->code),
                    run->device ? run->device->info.uuid : "-",
                    run->body.n_calls ? run->body.calls[0].call.op->name : "-", (int)c->pid, (int)c->uid,
                    quoted_client(c, client), log_quote(why, sizeof(why), e->message, strlen(e->message)), more);
}

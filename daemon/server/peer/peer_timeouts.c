#include "server/peer/peer_timeouts.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "server/peer/back_pressure.h"
#include "server/peer/connection.h"
#include "server/peer/room.h"
#include "util/clock.h"
#include "util/log.h"

enum { AGAIN_MS = 20, LINES_A_SECOND = 10 };
/* A stuck reader must read this much on average, or a byte now and then would keep its place. A paused client gets no
 * new replies but those to its requests in flight, so a client that reads this much catches up. */
enum { LEAST_BYTES_A_SECOND = 1024 };

static void on_timer(uv_timer_t *timer);

static uint64_t limit_ns(const struct server *s, enum peer_timeout what)
{
    switch (what) {
    case PEER_TIMEOUT_READER:
    case PEER_TIMEOUT_MESSAGE:
        return s->config.peer_timeout_s * UINT64_C(1000000000);
    default:
        return AGAIN_MS * UINT64_C(1000000);
    }
}

static struct connection *first(struct server *s, enum peer_timeout what)
{
    struct list *node = list_first(&s->peers->peer_timeouts.lists[what]);

    return node ? list_entry(node, struct connection, waits[what].link) : NULL;
}

/* Starts the timer for the connection whose time is over first. */
static void arm(struct server *s)
{
    uint64_t earliest = UINT64_MAX, now = clock_now_ns();

    for (unsigned i = 0; i < PEER_TIMEOUT_COUNT; i++) {
        const struct connection *c = first(s, (enum peer_timeout)i);
        uint64_t limit = limit_ns(s, (enum peer_timeout)i);

        if (c && limit && c->waits[i].since_ns + limit < earliest)
            earliest = c->waits[i].since_ns + limit;
    }
    if (earliest == UINT64_MAX) {
        uv_timer_stop(&s->peers->peer_timeouts.timer);
        return;
    }
    uv_update_time(&s->loop);
    uv_timer_start(&s->peers->peer_timeouts.timer, on_timer, earliest > now ? (earliest - now) / 1000000 + 1 : 0, 0);
}

/* Puts the connection into a list, or takes it out. A connection in the list keeps its time, unless it begins anew. */
static void set(struct connection *c, enum peer_timeout what, bool waits, bool anew)
{
    struct server *s = c->server;
    const bool waited = !list_empty(&c->waits[what].link);

    if (waited && waits && !anew)
        return;
    if (waited)
        list_remove(&c->waits[what].link);
    if (waits) {
        c->waits[what].since_ns = clock_now_ns();
        list_append(&s->peers->peer_timeouts.lists[what], &c->waits[what].link);
    }
    /* A connection that leaves does not touch the timer, which finds that out when it fires; only the last one stops
     * it. */
    if (waits ? !uv_is_active((uv_handle_t *)&s->peers->peer_timeouts.timer) || what == PEER_TIMEOUT_KERNEL : waited)
        arm(s);
}

/* Bytes the client has read, up to a constant: bytes sent, without those in the kernel's buffer. Bytes sent alone would
 * not do: the kernel takes bytes back in pieces of some ten thousand, and a slow reader may need longer than the limit
 * for one. */
static int64_t taken(const struct connection *c)
{
    int unread = 0;

    if (ioctl(c->fd, SIOCOUTQ, &unread) < 0)
        unread = 0;
    return (int64_t)connection_bytes_out(c) - unread;
}

/* Whether the client has read enough in its present time, or all replies that waited when that time began. */
static bool has_read(const struct connection *c)
{
    const uint64_t least = c->server->config.peer_timeout_s * LEAST_BYTES_A_SECOND;

    return taken(c) - c->read_from >= (int64_t)(least < c->read_waiting ? least : c->read_waiting);
}

static void note_reader(struct connection *c, bool moved)
{
    const bool anew = list_empty(&c->waits[PEER_TIMEOUT_READER].link) || (moved && has_read(c));

    set(c, PEER_TIMEOUT_READER, connection_is_stuck(c), anew);
    if (!anew)
        return;
    c->read_from = taken(c);
    c->read_waiting = buffer_length(&c->output.bytes) + (c->channel ? rpc_channel_pending(c->channel) : 0);
}

void peer_timeouts_note(struct connection *c, bool sent)
{
    uint64_t at;

    if (connection_is_stuck(c) || !list_empty(&c->waits[PEER_TIMEOUT_READER].link))
        note_reader(c, sent);
    if (connection_has_part(c) || !list_empty(&c->waits[PEER_TIMEOUT_MESSAGE].link)) {
        at = c->input.position + (c->channel ? c->channel->input.position : 0);
        set(c, PEER_TIMEOUT_MESSAGE, connection_has_part(c), at != c->part_at);
        c->part_at = at;
    }
    if (c->send_later || !list_empty(&c->waits[PEER_TIMEOUT_KERNEL].link))
        set(c, PEER_TIMEOUT_KERNEL, c->send_later, false);
}

void peer_timeouts_forget(struct connection *c)
{
    for (unsigned i = 0; i < PEER_TIMEOUT_COUNT; i++)
        if (!list_empty(&c->waits[i].link))
            set(c, (enum peer_timeout)i, false, false);
}

/* ---- expiry ---- */

static void drop(struct connection *c, enum peer_timeout what)
{
    static const char *const why[] = {[PEER_TIMEOUT_READER] = "it does not read its replies",
                                      [PEER_TIMEOUT_MESSAGE] = "the rest of a message did not come"};
    struct server *s = c->server;
    char who[CONNECTION_WHO_MAX];
    unsigned held_back;
    struct error e;

    if (what == PEER_TIMEOUT_READER)
        s->totals.dropped_readers++;
    else
        s->totals.dropped_senders++;
    if (log_limit_pass(&s->peers->peer_timeouts.log_limit, clock_now_ns(), LINES_A_SECOND, &held_back))
        log_warning("drop", "%s why=\"%s\" output_bytes=%zu input_bytes=%zu held_back=%u", connection_who(c, who),
                    why[what], buffer_length(&c->output.bytes), buffer_length(&c->input.bytes), held_back);
    if (what == PEER_TIMEOUT_READER) {
        connection_close(c, why[what]);
        return;
    }
    error_set(&e, ERROR_PROTOCOL_ERROR, "the rest of a message did not come within %llu s",
              (unsigned long long)s->config.peer_timeout_s);
    connection_fail(c, &e, why[what]);
}

/* The connection's time is over by the clock. The loop may have been the slow one, so input and output are looked at
 * once more. */
static void look(struct connection *c, enum peer_timeout what)
{
    uint64_t since = c->waits[what].since_ns;

    if (what == PEER_TIMEOUT_KERNEL) {
        c->send_later = false;
        set(c, what, false, false);
        connection_mark_dirty(c);
        return;
    }
    if (what == PEER_TIMEOUT_MESSAGE)
        connection_read_all(c);
    if (!c->closed)
        connection_turn(c);
    if (!c->closed && what == PEER_TIMEOUT_READER && !list_empty(&c->waits[what].link))
        note_reader(c, true);
    if (!c->closed && !list_empty(&c->waits[what].link) && c->waits[what].since_ns == since)
        drop(c, what);
}

static void on_timer(uv_timer_t *timer)
{
    struct server *s = timer->data;

    for (unsigned i = 0; i < PEER_TIMEOUT_COUNT; i++) {
        const uint64_t limit = limit_ns(s, (enum peer_timeout)i), now = clock_now_ns();
        struct connection *c;

        while (limit && (c = first(s, (enum peer_timeout)i)) && c->waits[i].since_ns + limit <= now)
            look(c, (enum peer_timeout)i);
    }
    arm(s);
}

void peer_timeouts_reload(struct server *s)
{
    arm(s);
}

void peer_timeouts_init(struct server *s)
{
    for (unsigned i = 0; i < PEER_TIMEOUT_COUNT; i++)
        list_init(&s->peers->peer_timeouts.lists[i]);
    uv_timer_init(&s->loop, &s->peers->peer_timeouts.timer);
    s->peers->peer_timeouts.timer.data = s;
}

void peer_timeouts_stop(struct server *s)
{
    uv_close((uv_handle_t *)&s->peers->peer_timeouts.timer, NULL);
}

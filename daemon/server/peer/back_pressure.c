#include "server/peer/back_pressure.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "server/peer/connection.h"
#include "server/peer/room.h"
#include "util/clock.h"
#include "util/log.h"

/* REPLY_FDS: descriptors of one reply at most. WAITING_REPLY_FDS: descriptors that may wait in the output, together
 * with those of replies still to come. */
enum { REPLY_FDS = CHANNEL_FDS, WAITING_REPLY_FDS = RPC_OUTPUT_MAX_ATTACHMENTS - REPLY_FDS };
/* Bytes of a partial message that are read while its user has no room. */
enum { INPUT_WITHOUT_ROOM = 4096 };

static bool has_credit(const struct connection *c)
{
    if (c->fd_replies + c->output.n_attachments > WAITING_REPLY_FDS)
        return false;
    return c->inflight < c->server->config.inflight && c->request_bytes <= REQUEST_BYTES_MAX && user_pressure_admits(c);
}

/* Replies that may wait for each connection of a user without room, before it must read them. */
enum { OUTPUT_WITHOUT_ROOM = 4096 };

/* Replies that may wait for the connection before it is not read. */
static uint64_t output_max(const struct connection *c)
{
    const uint64_t most = c->server->config.output_bytes;

    return user_pressure_admits(c) || most < OUTPUT_WITHOUT_ROOM ? most : OUTPUT_WITHOUT_ROOM;
}

bool connection_is_stuck(const struct connection *c)
{
    const uint64_t in_socket = buffer_length(&c->output.bytes),
                   in_ring = c->channel ? rpc_channel_pending(c->channel) : 0;
    const uint64_t waiting = in_socket > in_ring ? in_socket : in_ring;

    return waiting && waiting > output_max(c);
}

bool connection_may_read(const struct connection *c)
{
    return !c->input_ended && has_credit(c) && !connection_is_stuck(c);
}

/* Without credit a connection is read until its next message is known, since some requests need no credit. While its
 * user has no room only small messages are read: a long `ping` must not add to the waiting bytes. */
static bool may_look(const struct connection *c, const struct rpc_input *in, bool waits)
{
    if (c->input_ended || connection_is_stuck(c))
        return false;
    return has_credit(c) || (!waits && (user_pressure_admits(c) || buffer_length(&in->bytes) < INPUT_WITHOUT_ROOM));
}

bool connection_may_look(const struct connection *c)
{
    return may_look(c, &c->input, c->input_waits);
}

bool connection_may_look_at_ring(const struct connection *c)
{
    return may_look(c, &c->channel->input, c->ring_waits);
}

/* Whether a partial message has come whose rest would be read. */
static bool connection_has_part(const struct connection *c)
{
    return !c->input_ended &&
           ((!c->input_left && buffer_length(&c->input.bytes) && connection_may_look(c)) ||
            (c->channel && !c->ring_left && buffer_length(&c->channel->input.bytes) && connection_may_look_at_ring(c)));
}

bool connection_has_output(const struct connection *c)
{
    return buffer_length(&c->output.bytes) || (c->channel && rpc_channel_pending(c->channel));
}

void connection_mark_dirty(struct connection *c)
{
    if (!c->closed)
        schedule_add(&c->server->schedule, &c->account->turns, &c->task);
}

/* ---- user pressure ---- */

/* The time between two choices of an exempt connection, while a user has no room. */
enum { TICK_MS = 20 };

static bool has_input(const struct connection *c)
{
    return buffer_length(&c->input.bytes) || (c->channel && buffer_length(&c->channel->input.bytes));
}

static void on_tick(uv_timer_t *timer);

/* ---- paused connections ---- */

static void wake_all(struct server *s, const struct account *a)
{
    list_for_each_safe (node, after, &s->peers->connections) {
        struct connection *c = list_entry(node, struct connection, link);

        if (c->account == a)
            connection_mark_dirty(c); /* each is checked for whether it reads its replies */
    }
}

static void pause_connection(struct connection *c)
{
    struct server *s = c->server;
    struct account *a = c->account;

    list_append(&a->paused, &c->paused_link);
    if (!list_empty(&a->pressed_link))
        return;
    list_append(&s->accounts.pressed, &a->pressed_link);
    wake_all(s, a);
    if (!uv_is_active((uv_handle_t *)&s->peers->user_pressure_timer))
        uv_timer_start(&s->peers->user_pressure_timer, on_tick, TICK_MS, TICK_MS);
}

static void resume_connection(struct connection *c)
{
    struct account *a = c->account;

    list_remove(&c->paused_link);
    if (!list_empty(&a->paused))
        return;
    list_remove(&a->pressed_link);
    if (list_empty(&c->server->accounts.pressed))
        uv_timer_stop(&c->server->peers->user_pressure_timer);
}

void user_pressure_note(struct connection *c)
{
    struct account *a = c->account;
    uint64_t bytes = buffer_held(&c->input.bytes) + buffer_held(&c->output.bytes);

    if (c->channel)
        bytes += buffer_held(&c->channel->input.bytes) + buffer_held(&c->channel->output.bytes);
    if (bytes < c->buffered.amount)
        trimming_note(&c->server->trimming, c->buffered.amount - bytes);
    if (bytes != c->buffered.amount)
        charge_note(&c->buffered, bytes);
    if (c->closed)
        return;
    if (a->exempt == c && (!has_input(c) || connection_is_stuck(c)))
        a->exempt = NULL;
    if (!user_pressure_admits(c) && list_empty(&c->paused_link))
        pause_connection(c);
}

void user_pressure_forget(struct connection *c)
{
    trimming_note(&c->server->trimming, c->buffered.amount + c->request_bytes);
    if (c->account->exempt == c)
        c->account->exempt = NULL;
    if (!list_empty(&c->paused_link))
        resume_connection(c);
}

void user_pressure_turn(struct server *s)
{
    list_for_each_safe (node, after, &s->accounts.pressed) {
        struct account *a = list_entry(node, struct account, pressed_link);

        if (!account_has_room(a, QUOTA_WAITING))
            continue;
        a->exempt = NULL;
        while (!list_empty(&a->paused)) {
            struct connection *c = list_entry(list_first(&a->paused), struct connection, paused_link);

            resume_connection(c);
            connection_mark_dirty(c);
        }
    }
}

/* Exempts the first paused connection that owes the rest of a message. It goes behind the others when it is paused
 * again. */
static void exempt_one(struct account *a)
{
    list_for_each_safe (node, after, &a->paused) {
        struct connection *c = list_entry(node, struct connection, paused_link);

        if (!has_input(c))
            continue;
        resume_connection(c);
        a->exempt = c;
        connection_mark_dirty(c);
        return;
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct server *s = timer->data;

    list_for_each_safe (node, after, &s->accounts.pressed) {
        struct account *a = list_entry(node, struct account, pressed_link);

        /* Replies to an exempt connection add to the waiting bytes: a user far over its quota must read replies
         * first. */
        if (!a->exempt && a->used[QUOTA_WAITING] / 2 < a->limits->of[QUOTA_WAITING])
            exempt_one(a);
    }
}

/* ---- life ---- */

void user_pressure_init(struct server *s)
{
    uv_timer_init(&s->loop, &s->peers->user_pressure_timer);
    s->peers->user_pressure_timer.data = s;
}

void user_pressure_stop(struct server *s)
{
    uv_close((uv_handle_t *)&s->peers->user_pressure_timer, NULL);
}

/* ---- peer timeouts ---- */

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

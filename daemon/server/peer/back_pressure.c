#include "server/peer/back_pressure.h"

#include "server/peer/connection.h"
#include "server/peer/room.h"

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

bool connection_has_part(const struct connection *c)
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

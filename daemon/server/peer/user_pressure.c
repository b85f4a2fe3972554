#include "server/peer/backlog.h"

#include "server/peer/back_pressure.h"
#include "server/peer/connection.h"
#include "server/peer/room.h"

/* Between two looks for a connection that owes the rest of a message, while a user has no room. */
enum { TICK_MS = 20 };
static uint64_t bytes_of(const struct connection *c)
{
    uint64_t bytes = buffer_held(&c->input.bytes) + buffer_held(&c->output.bytes);

    if (c->channel)
        bytes += buffer_held(&c->channel->input.bytes) + buffer_held(&c->channel->output.bytes);
    return bytes;
}

static bool has_input(const struct connection *c)
{
    return buffer_length(&c->input.bytes) || (c->channel && buffer_length(&c->channel->input.bytes));
}

static void on_tick(uv_timer_t *timer);

/* ---- who waits ---- */

static void wake_all(struct server *s, const struct account *a)
{
    list_for_each_safe (node, after, &s->peers->connections) {
        struct connection *c = list_entry(node, struct connection, link);

        if (c->account == a)
            connection_mark_dirty(c); /* it is looked at whether it reads its replies */
    }
}

static void starve(struct connection *c)
{
    struct server *s = c->server;
    struct account *a = c->account;

    list_append(&a->starved, &c->starved_link);
    if (!list_empty(&a->starving_link))
        return;
    list_append(&s->accounts.starving, &a->starving_link);
    wake_all(s, a);
    if (!uv_is_active((uv_handle_t *)&s->peers->backlog_timer))
        uv_timer_start(&s->peers->backlog_timer, on_tick, TICK_MS, TICK_MS);
}

static void feed(struct connection *c)
{
    struct account *a = c->account;

    list_remove(&c->starved_link);
    if (list_empty(&a->starved))
        list_remove(&a->starving_link);
}

void backlog_note(struct connection *c)
{
    struct account *a = c->account;
    const uint64_t bytes = bytes_of(c);

    if (bytes < c->backlog.amount)
        trimming_note(&c->server->trimming, c->backlog.amount - bytes);
    if (bytes != c->backlog.amount)
        charge_note(&c->backlog, bytes);
    if (c->closed)
        return;
    if (a->favoured == c && (!has_input(c) || connection_is_stuck(c)))
        a->favoured = NULL;
    if (!backlog_admits(c) && list_empty(&c->starved_link))
        starve(c);
}

void backlog_forget(struct connection *c)
{
    trimming_note(&c->server->trimming, c->backlog.amount + c->held_bytes);
    if (c->account->favoured == c)
        c->account->favoured = NULL;
    if (!list_empty(&c->starved_link))
        feed(c);
}

void backlog_turn(struct server *s)
{
    list_for_each_safe (node, after, &s->accounts.starving) {
        struct account *a = list_entry(node, struct account, starving_link);

        if (!account_has_room(a, QUOTA_WAITING))
            continue;
        a->favoured = NULL;
        while (!list_empty(&a->starved)) {
            struct connection *c = list_entry(list_first(&a->starved), struct connection, starved_link);

            feed(c);
            connection_mark_dirty(c);
        }
    }
    if (list_empty(&s->accounts.starving))
        uv_timer_stop(&s->peers->backlog_timer);
}

/* The first that owes the rest of a message; it is behind the others when it is starved again. */
static void favour_one(struct account *a)
{
    list_for_each_safe (node, after, &a->starved) {
        struct connection *c = list_entry(node, struct connection, starved_link);

        if (!has_input(c))
            continue;
        feed(c);
        a->favoured = c;
        connection_mark_dirty(c);
        return;
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct server *s = timer->data;

    list_for_each_safe (node, after, &s->accounts.starving) {
        struct account *a = list_entry(node, struct account, starving_link);

        /* What it asks for is answered, so replies grow: those must be read before more are made. */
        if (!a->favoured && a->used[QUOTA_WAITING] / 2 < s->accounts.limits->of[QUOTA_WAITING])
            favour_one(a);
    }
}

/* ---- life ---- */

void backlog_init(struct server *s)
{
    uv_timer_init(&s->loop, &s->peers->backlog_timer);
    s->peers->backlog_timer.data = s;
}

void backlog_stop(struct server *s)
{
    uv_close((uv_handle_t *)&s->peers->backlog_timer, NULL);
}

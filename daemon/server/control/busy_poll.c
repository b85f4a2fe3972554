#include "server/control/busy_poll.h"

#include "server/control/event_loop.h"
#include "server/peer/connection.h"
#include "util/clock.h"

/* A slice is short, so that timers, new connections and other sockets are seen to in time. Where more sockets than a
 * few are busy there are no slices: the loop asks for all of them in one call. */
enum { SLICE_NS = 20000, SOCKETS_MAX = 4, SHRINKS_TO = 8, LOOKS = 4, UNWATCHED_AFTER = 16 };

void busy_poll_init(struct server *s)
{
    list_init(&s->recent);
    s->spin_ns = s->config.spin_us * 1000;
}

/* The budget after a sleep: whole again when the next thing came so soon that polling for it would have paid, else
 * smaller. */
static void judge_sleep(struct server *s, uint64_t gap)
{
    const uint64_t whole = s->config.spin_us * 1000;

    if (gap <= whole)
        s->spin_ns = whole;
    else if (s->spin_ns > whole / SHRINKS_TO)
        s->spin_ns /= 2;
}

static bool may_complete(const struct server *s)
{
    if (!list_empty(&s->held.users))
        return true;
    for (unsigned i = 0; s->n_jobs_running && i < s->devices.count; i++)
        if (s->jobs_running[i] && s->devices.all[i]->backend->spin)
            return true;
    return false;
}

/* Whether something may soon be found by polling on. A device that works is worth the whole budget: its time is in no
 * relation to when requests come. */
static bool wanted(struct server *s, uint64_t now)
{
    uint64_t gap = now - s->last_activity_ns;

    if (s->active) {
        if (s->slept)
            judge_sleep(s, gap);
        s->active = s->slept = false;
        s->last_activity_ns = now;
        return true;
    }
    if (gap < s->spin_ns)
        return true;
    return gap < s->config.spin_us * 1000 && may_complete(s);
}

static void forget(struct connection *c)
{
    list_remove(&c->recent_link);
    c->server->n_recent--;
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
    if (s->n_recent == SOCKETS_MAX) {
        s->crowded_ns = clock_now_ns();
        forget(list_entry(list_first(&s->recent), struct connection, recent_link));
    }
    list_append(&s->recent, &c->recent_link);
    s->n_recent++;
}

void recent_socket_closed(struct connection *c)
{
    if (!list_empty(&c->recent_link))
        forget(c);
}

static void poll_sockets(struct server *s, uint64_t now)
{
    list_for_each_safe (node, after, &s->recent) {
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

/* Nobody looks at the sockets from now on. */
static void watch_sockets(struct server *s)
{
    list_for_each_safe (node, after, &s->recent) {
        struct connection *c = list_entry(node, struct connection, recent_link);

        c->recent_hits = 0;
        connection_watch(c);
    }
}

bool busy_poll_slice(struct server *s)
{
    uint64_t now, end;

    if (!s->config.spin_us)
        return false;
    now = clock_now_ns();
    end = now < s->crowded_ns + s->config.spin_us * 1000 ? now : now + SLICE_NS;
    while (!s->stopping && wanted(s, now) && now < end) {
        if (s->n_recent)
            poll_sockets(s, now);
        event_loop_turn(s); /* also what the sockets brought */
        /* Looking costs less than telling the time. */
        for (unsigned i = 1; i < LOOKS && !s->n_recent && !s->active; i++) {
            ring_pause();
            event_loop_turn(s);
        }
        now = clock_now_ns();
    }
    if (!s->stopping && wanted(s, now))
        return true;
    watch_sockets(s);
    return false;
}

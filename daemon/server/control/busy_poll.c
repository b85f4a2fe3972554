#include "server/control/busy_poll.h"

#include "server/control/event_loop.h"
#include "server/control/room.h"
#include "server/exec/exec.h"
#include "server/peer/peers.h"
#include "server/peer/recent_sockets.h"
#include "util/clock.h"

/* A slice is short, so that timers, new connections and other sockets get their turn soon. Where many sockets are busy
 * there are no slices: the loop asks for all sockets in one call. */
enum { SLICE_NS = 20000, SHRINKS_TO = 8, FEW_NEW = 8, LOOKS = 4 };

void busy_poll_init(struct server *s)
{
    s->control->busy_poll_ns = s->config.spin_us * 1000;
}

/* Sets the budget after a sleep of `gap`: whole again when polling for the next event would have paid, else smaller. */
static void judge_sleep(struct server *s, uint64_t gap)
{
    const uint64_t whole = s->config.spin_us * 1000;

    if (gap <= whole)
        s->control->busy_poll_ns = whole;
    else if (s->control->busy_poll_ns > whole / SHRINKS_TO)
        s->control->busy_poll_ns /= 2;
}

/* Whether the next event is likely the end of a run, at a time that is known. */
static bool awaits_end(const struct server *s)
{
    return exec_has_forecasts(s) && peers_last_waits(s);
}

/* Whether polling on may soon find an event. Jobs that are likely to end soon are worth it whenever that is. Of other
 * jobs nothing is known: they are worth the whole budget, since their time does not depend on when requests come. */
static bool wanted(struct server *s, uint64_t now)
{
    uint64_t gap = now - s->control->last_activity_ns;

    if (s->active) {
        if (s->control->slept)
            judge_sleep(s, gap);
        s->active = s->control->slept = false;
        s->control->last_activity_ns = now;
        return true;
    }
    if (gap < (awaits_end(s) ? s->control->busy_poll_ns / FEW_NEW : s->control->busy_poll_ns))
        return true;
    return exec_ends_soon(s, now) || (gap < s->config.spin_us * 1000 && !exec_has_forecasts(s) && exec_may_complete(s));
}

bool busy_poll_slice(struct server *s)
{
    uint64_t now, end;

    if (!s->config.spin_us)
        return false;
    now = clock_now_ns();
    end = recent_sockets_are_many(s, now) ? now : now + SLICE_NS;
    while (!s->admission.stopping && wanted(s, now) && now < end) {
        recent_sockets_read(s, now);
        event_loop_turn(s); /* also serves input of the sockets */
        /* Several looks for each reading of the clock, which costs more. */
        for (unsigned i = 1; i < LOOKS && !recent_sockets_any(s) && !s->active; i++) {
            ring_pause();
            event_loop_turn(s);
        }
        now = clock_now_ns();
    }
    if (!s->admission.stopping && wanted(s, now))
        return true;
    recent_sockets_watch(s);
    return schedule_waits(&s->schedule);
}

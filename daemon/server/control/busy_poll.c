#include "server/control/busy_poll.h"

#include "server/control/event_loop.h"
#include "server/control/room.h"
#include "server/exec/exec.h"
#include "server/peer/recent_sockets.h"
#include "util/clock.h"

/* A slice is short, so that timers, new connections and other sockets are seen to in time. Where more sockets than a
 * few are busy there are no slices: the loop asks for all of them in one call. */
enum { SLICE_NS = 20000, SHRINKS_TO = 8, LOOKS = 4 };

void busy_poll_init(struct server *s)
{
    s->control->busy_poll_ns = s->config.spin_us * 1000;
}

/* The budget after a sleep: whole again when the next thing came so soon that polling for it would have paid, else
 * smaller. */
static void judge_sleep(struct server *s, uint64_t gap)
{
    const uint64_t whole = s->config.spin_us * 1000;

    if (gap <= whole)
        s->control->busy_poll_ns = whole;
    else if (s->control->busy_poll_ns > whole / SHRINKS_TO)
        s->control->busy_poll_ns /= 2;
}

/* Whether something may soon be found by polling on. A device that works is worth the whole budget: its time is in no
 * relation to when requests come. */
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
    if (gap < s->control->busy_poll_ns)
        return true;
    return gap < s->config.spin_us * 1000 && exec_may_complete(s);
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
        event_loop_turn(s); /* also what the sockets brought */
        /* Looking costs less than telling the time. */
        for (unsigned i = 1; i < LOOKS && !recent_sockets_any(s) && !s->active; i++) {
            ring_pause();
            event_loop_turn(s);
        }
        now = clock_now_ns();
    }
    if (!s->admission.stopping && wanted(s, now))
        return true;
    recent_sockets_watch(s);
    return false;
}

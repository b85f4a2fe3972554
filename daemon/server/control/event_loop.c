/* The event loop: the order of work in a turn, and the decision to sleep. Thread: loop. */
#include "server/control/room.h"
#include "server/exec/exec.h"
#include "server/peer/listener.h"
#include "server/peer/peers.h"
#include "server/peer/request.h"
#include "server/tune/tune.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/loop.h"

static void busy_poll_init(struct server *s);
static bool busy_poll_slice(struct server *s);
static void idle_exit_step(struct server *s);

static void check_lost(struct server *s)
{
    for (unsigned i = 0; i < s->devices.count; i++)
        if (s->devices.all[i]->lost && s->control->exit_status != SERVER_EXIT_DEVICE_LOST) {
            log_error("device_lost", "uuid=%s action=exit status=%d", s->devices.all[i]->info.uuid,
                      SERVER_EXIT_DEVICE_LOST);
            s->control->exit_status = SERVER_EXIT_DEVICE_LOST;
            shutdown_begin(s);
        }
}

/* Does all work that needs no waiting. Replies of one turn leave in one write a connection. */
static void event_loop_turn(struct server *s)
{
    exec_poll(s);
    tune_step(s);
    check_lost(s);
    shutdown_check_signals(s);
    peers_poll(s);
    do
        peers_serve(s);
    while (drain_step(s));
    if (s->admission.stopping)
        shutdown_step(s);
    else
        idle_exit_step(s);
}

static void on_idle(uv_idle_t *idle)
{
    (void)idle; /* an active idle handle keeps the loop from sleeping */
}

/* A turn comes between two looks at the sockets. It comes last before the loop sleeps, so it sees everything that
 * sockets, timers and threads have brought. Where it leaves work, the loop comes back without sleeping. */
static void on_prepare(uv_prepare_t *prepare)
{
    struct server *s = prepare->data;

    event_loop_turn(s);
    if (schedule_waits(&s->schedule) || busy_poll_slice(s) || !peers_sleep(s)) {
        uv_idle_start(&s->control->idle, on_idle);
        return;
    }
    s->control->slept = !exec_has_forecasts(s);
    uv_idle_stop(&s->control->idle);
    exec_arm(s);
}

static void on_wake(uv_async_t *async)
{
    struct server *s = async->data;

    /* The next turn polls every device: a device may be lost while it has no job. */
    s->woken = true;
}

int event_loop_init(struct server *s, struct error *e)
{
    busy_poll_init(s);
    if (uv_async_init(&s->loop, &s->wake, on_wake) < 0)
        return error_set(e, ERROR_INTERNAL, "the event loop cannot be set up");
    s->wake.data = s;
    uv_prepare_init(&s->loop, &s->control->prepare);
    uv_idle_init(&s->loop, &s->control->idle);
    s->control->prepare.data = s;
    uv_prepare_start(&s->control->prepare, on_prepare);
    return 0;
}

static void on_device(uv_poll_t *poll, int status, int events)
{
    struct server *s = poll->data;

    (void)status;
    (void)events;
    s->woken = true;
}

int event_loop_watch_devices(struct server *s, struct error *e)
{
    struct control *c = s->control;
    int last = -1;

    for (unsigned i = 0; i < s->devices.count; i++) {
        const struct backend *backend = s->devices.all[i]->backend;
        const int fd = backend->wake_fd ? backend->wake_fd(s->devices.all[i]) : -1;
        uv_poll_t *watch = &c->devices[c->n_devices_watched];

        if (fd < 0 || fd == last)
            continue;
        last = fd;
        if (uv_poll_init(&s->loop, watch, fd) < 0)
            return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to watch a device");
        watch->data = s;
        c->n_devices_watched++;
        if (watch_start(watch, UV_READABLE, on_device) < 0)
            return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to watch a device");
    }
    return 0;
}

void event_loop_stop(struct server *s)
{
    uv_close((uv_handle_t *)&s->wake, NULL);
    uv_close((uv_handle_t *)&s->control->prepare, NULL);
    uv_close((uv_handle_t *)&s->control->idle, NULL);
    for (unsigned i = 0; i < s->control->n_devices_watched; i++)
        uv_close((uv_handle_t *)&s->control->devices[i], NULL);
}

/* ---- busy poll ---- */

/* The busy poll: polls rings, devices and sockets for up to server.spin_us before the loop sleeps. Owns the budget,
 * which shrinks while polling does not pay. */

/* A slice is short, so that timers, new connections and other sockets get their turn soon. Where many sockets are busy
 * there are no slices: the loop asks for all sockets in one call. */
enum { SLICE_NS = 20000, SHRINKS_TO = 8, FEW_NEW = 8, LOOKS = 4 };

static void busy_poll_init(struct server *s)
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

/* Polls rings, devices and recent sockets for a slice of the budget, then lets the loop look at everything else. True:
 * the loop must come back without sleeping, to poll on or since the last turn has left work. */
static bool busy_poll_slice(struct server *s)
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

/* ---- idle exit ---- */

void idle_exit_init(struct server *s)
{
    uv_timer_init(&s->loop, &s->control->idle_exit);
    s->control->idle_exit.data = s;
}

void idle_exit_close(struct server *s)
{
    uv_close((uv_handle_t *)&s->control->idle_exit, NULL);
}

static bool is_unused(const struct server *s)
{
    return !peers_open_connections(s) && !s->admission.work;
}

static void on_timer(uv_timer_t *timer)
{
    struct server *s = timer->data;

    /* A client that comes now is served. One that comes later is refused, and asks for the next daemon. */
    if (!is_unused(s) || listener_has_newcomers(s) || s->admission.stopping)
        return;
    log_info("stop", "why=\"no connection for %llu s (server.idle_exit_s)\"",
             (unsigned long long)s->config.idle_exit_s);
    shutdown_begin(s);
}

/* Begins and ends the wait. Called in every turn of the loop. */
static void idle_exit_step(struct server *s)
{
    uv_timer_t *timer = &s->control->idle_exit;
    const bool waits = s->config.idle_exit_s && is_unused(s);

    if (waits == uv_is_active((const uv_handle_t *)timer))
        return;
    if (!waits) {
        uv_timer_stop(timer);
        return;
    }
    uv_update_time(&s->loop);
    uv_timer_start(timer, on_timer, s->config.idle_exit_s * 1000, 0);
}

void idle_exit_reload(struct server *s)
{
    uv_timer_stop(&s->control->idle_exit);
}

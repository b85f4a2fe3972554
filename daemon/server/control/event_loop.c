#include "server/control/event_loop.h"

#include "server/control/busy_poll.h"
#include "server/control/drain.h"
#include "server/control/idle_exit.h"
#include "server/control/room.h"
#include "server/control/shutdown.h"
#include "server/exec/exec.h"
#include "server/peer/peers.h"
#include "server/tune/tune.h"
#include "util/log.h"
#include "util/watch.h"

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

void event_loop_turn(struct server *s)
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

/* One turn between two looks at the sockets. It comes last before the loop sleeps, so it sees everything that sockets,
 * timers and threads have brought. Where it leaves work, the loop comes back without sleeping. */
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

#include "server/control/idle_exit.h"

#include "server/control/room.h"
#include "server/control/shutdown.h"
#include "server/peer/listener.h"
#include "server/peer/request.h"
#include "util/log.h"

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

void idle_exit_step(struct server *s)
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

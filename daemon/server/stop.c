#include "server/stop.h"

#include <unistd.h>

#include "server/connection.h"
#include "server/pump.h"
#include "server/request.h"
#include "server/run.h"
#include "util/log.h"

static void on_grace_over(uv_timer_t *timer);

static void on_signal(uv_signal_t *handle, int signal)
{
    log_info("stop", "signal=%d", signal);
    server_stop(handle->data);
}

void stop_init(struct server *s)
{
    uv_timer_init(&s->loop, &s->shutdown_timer);
    uv_signal_init(&s->loop, &s->sigterm);
    uv_signal_init(&s->loop, &s->sigint);
    s->shutdown_timer.data = s->sigterm.data = s->sigint.data = s;
    uv_signal_start(&s->sigterm, on_signal, SIGTERM);
    uv_signal_start(&s->sigint, on_signal, SIGINT);
}

void server_stop(struct server *s)
{
    if (s->stopping)
        return;
    s->stopping = true;
    uv_close((uv_handle_t *)&s->listener_poll, NULL);
    close(s->listener);
    s->listener = -1;
    /* What was sent before this is read and answered: with results, or with shutting_down. */
    list_for_each_safe (node, after, &s->connections)
        connection_end_input(list_entry(node, struct connection, link));
    uv_timer_start(&s->shutdown_timer, on_grace_over, s->config.shutdown_grace_ms, s->config.shutdown_grace_ms + 1000);
}

static void cancel_everything(struct server *s)
{
    list_for_each_safe (node, after, &s->connections) {
        struct connection *c = list_entry(node, struct connection, link);

        while (!list_empty(&c->runs)) {
            struct run *run = list_entry(list_first(&c->runs), struct run, order_link);

            if (run->state != RUN_QUEUED)
                break;
            run_stop(list_entry(run, struct request, run), RUN_CANCELLED);
        }
        list_for_each_safe (inner, inner_after, &c->runs) {
            struct run *run = list_entry(inner, struct run, order_link);

            if (run->stop == RUN_GOES_ON && run->state != RUN_QUEUED)
                run_stop(list_entry(run, struct request, run), RUN_CANCELLED);
        }
    }
}

/* First what still runs is cancelled; when even that does not end, a kernel hangs and nothing here can stop it. */
static void on_grace_over(uv_timer_t *timer)
{
    struct server *s = timer->data;

    if (s->cancelled_all) {
        log_error("stop_forced", "jobs=%u why=\"a running kernel does not end\"", s->n_jobs_running);
        _exit(s->exit_status ? s->exit_status : SERVER_EXIT_FAILED);
    }
    s->cancelled_all = true;
    cancel_everything(s);
}

void server_stop_step(struct server *s)
{
    list_for_each_safe (node, after, &s->connections) {
        struct connection *c = list_entry(node, struct connection, link);

        /* A client that does not read its last replies has until the grace is over. */
        if (!c->closed && !c->inflight && (!buffer_length(&c->output.bytes) || s->cancelled_all))
            connection_close(c, "the daemon is ending");
    }
    if (!list_empty(&s->connections) || s->mappings.count || s->handles_closed)
        return;
    s->handles_closed = true;
    mapping_registry_stop(&s->mappings);
    pump_stop(s);
    uv_close((uv_handle_t *)&s->deadline_timer, NULL);
    uv_close((uv_handle_t *)&s->shutdown_timer, NULL);
    uv_close((uv_handle_t *)&s->sigterm, NULL);
    uv_close((uv_handle_t *)&s->sigint, NULL);
}

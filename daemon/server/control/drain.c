#include "server/control/drain.h"

#include "server/control/shutdown.h"
#include "server/control/watchdog.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/clock.h"
#include "util/log.h"

const char *const server_state_names[STATE_COUNT] = {
    [STATE_SERVING] = "serving",
    [STATE_DRAINING] = "draining",
    [STATE_STOPPING] = "stopping",
};

enum server_state server_state(const struct server *s)
{
    return s->stopping ? STATE_STOPPING : s->drain.active ? STATE_DRAINING : STATE_SERVING;
}

void drain_init(struct server *s)
{
    list_init(&s->drain.waiting);
    uv_timer_init(&s->loop, &s->drain.timer);
    s->drain.timer.data = s;
}

void drain_close(struct server *s)
{
    uv_close((uv_handle_t *)&s->drain.timer, NULL);
}

bool drain_refuses(const struct server *s, struct error *e)
{
    if (!s->drain.active)
        return false;
    error_set(e, ERROR_SHUTTING_DOWN, "the daemon is being drained and begins nothing new; try again later");
    error_detail_bool(e, "draining", true);
    return true;
}

static struct request *request_of(struct list *link)
{
    return (struct request *)(void *)((char *)link - offsetof(struct request, watch.link));
}

static void answer(struct request *r)
{
    const struct server *s = r->connection->server;
    struct rpc_output *out = request_result(r);

    if (out) {
        rpc_write_map(out, 3);
        rpc_write_entry_bool(out, "drained", s->drain.work == 0);
        rpc_write_entry_uint(out, "jobs", s->drain.work);
        rpc_write_entry_uint(out, "connections", s->n_connections);
    }
    request_end(r);
}

static void answer_all(struct server *s)
{
    while (!list_empty(&s->drain.waiting)) {
        struct list *link = list_first(&s->drain.waiting);

        list_remove(link);
        answer(request_of(link));
    }
}

static void resume(struct request *r)
{
    struct server *s = r->connection->server;

    if (s->drain.active && !s->stopping)
        log_info("resume", "pid=%d uid=%d jobs=%u", (int)r->connection->pid, (int)r->connection->uid, s->drain.work);
    s->drain.active = s->drain.stop = s->drain.done = false;
    watchdog_tell(s);
    answer_all(s);
    answer(r);
}

static void begin(struct request *r, bool stop, uint64_t timeout_ms)
{
    struct server *s = r->connection->server;

    log_info("drain", "pid=%d uid=%d stop=%s timeout_ms=%llu jobs=%u", (int)r->connection->pid, (int)r->connection->uid,
             stop ? "true" : "false", (unsigned long long)timeout_ms, s->drain.work);
    s->drain.active = true;
    s->drain.done = false;
    watchdog_tell(s);
    r->watch.by_ns = timeout_ms ? r->received_ns + timeout_ms * 1000000U : 0;
    if (stop) {
        s->drain.stop = true;
        s->drain.stop_by_ns = r->watch.by_ns;
    }
    list_append(&s->drain.waiting, &r->watch.link);
}

void handle_drain(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct error e;

    (void)fds;
    if (args[DRAIN_stop].b && args[DRAIN_resume].b) {
        error_set(&e, ERROR_INVALID_ARGUMENT, "resume: a daemon that goes on cannot stop; give either");
        error_detail_text(&e, "key", "resume");
        request_end_error(r, &e);
        return;
    }
    if (args[DRAIN_resume].b)
        resume(r);
    else
        begin(r, args[DRAIN_stop].b, args[DRAIN_timeout_ms].u);
}

static void on_timer(uv_timer_t *timer)
{
    (void)timer; /* the turn of the loop that comes now sees to it */
}

/* Wakes the loop for the earliest of them. */
static void arm(struct server *s, uint64_t now)
{
    uint64_t earliest = s->drain.stop && s->drain.stop_by_ns ? s->drain.stop_by_ns : UINT64_MAX;

    list_for_each_safe (node, after, &s->drain.waiting) {
        const struct request *r = request_of(node);

        if (r->watch.by_ns && r->watch.by_ns < earliest)
            earliest = r->watch.by_ns;
    }
    if (earliest != UINT64_MAX)
        uv_timer_start(&s->drain.timer, on_timer, earliest > now ? (earliest - now) / 1000000 + 1 : 0, 0);
}

static bool is_over(uint64_t by_ns, uint64_t now)
{
    return by_ns && now >= by_ns;
}

bool drain_step(struct server *s)
{
    const bool empty = s->drain.work == 0;
    bool did = false;
    uint64_t now;

    if (list_empty(&s->drain.waiting) && !s->drain.stop)
        return false;
    now = clock_now_ns();
    if (empty && s->drain.active && !s->drain.done) {
        s->drain.done = true;
        log_info("drained", "connections=%u", s->n_connections);
    }
    list_for_each_safe (node, after, &s->drain.waiting) {
        struct request *r = request_of(node);

        if (!empty && !is_over(r->watch.by_ns, now) && !r->connection->closed)
            continue;
        list_remove(node);
        answer(r);
        did = true;
    }
    if (s->drain.stop && (empty || is_over(s->drain.stop_by_ns, now))) {
        s->drain.stop = false;
        log_info("stop", "why=\"drained\" jobs=%u", s->drain.work);
        shutdown_begin(s);
        return true;
    }
    arm(s, now);
    return did;
}

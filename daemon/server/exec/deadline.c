/* Deadlines of runs. When a deadline passes, the run is stopped. One timer is set to the earliest deadline. */

#include "server/exec/room.h"
#include "server/exec/run.h"
#include "server/peer/request.h"
#include "util/clock.h"

static void on_timer(uv_timer_t *timer);

static void arm(struct server *s)
{
    uint64_t earliest = UINT64_MAX, now = clock_now_ns();

    list_for_each_safe (node, after, &s->exec->deadlines) {
        const struct run *run = list_entry(node, struct run, deadline_link);

        if (run->deadline_ns < earliest)
            earliest = run->deadline_ns;
    }
    if (earliest == UINT64_MAX) {
        uv_timer_stop(&s->exec->deadline_timer);
        return;
    }
    uv_update_time(&s->loop);
    uv_timer_start(&s->exec->deadline_timer, on_timer, earliest > now ? (earliest - now) / 1000000 + 1 : 0, 0);
}

static void on_timer(uv_timer_t *timer)
{
    struct server *s = timer->data;
    bool again = true;

    /* A late run leaves the list. Stopping one run may end others, so the search begins anew. */
    while (again) {
        uint64_t now = clock_now_ns();

        again = false;
        list_for_each_safe (node, after, &s->exec->deadlines) {
            struct run *run = list_entry(node, struct run, deadline_link);

            if (run->deadline_ns <= now) {
                run_deadline(run);
                again = true;
                break;
            }
        }
    }
    arm(s);
}

void deadlines_init(struct server *s)
{
    list_init(&s->exec->deadlines);
    uv_timer_init(&s->loop, &s->exec->deadline_timer);
    s->exec->deadline_timer.data = s;
}

void deadline_set(struct run *run, uint64_t at_ns)
{
    struct server *s = run->stream->connection->server;

    if (run->deadline_ns && run->deadline_ns <= at_ns)
        return;
    if (!run->deadline_ns)
        list_append(&s->exec->deadlines, &run->deadline_link);
    run->deadline_ns = at_ns;
    arm(s);
}

void deadline_remove(struct run *run)
{
    struct server *s = run->stream->connection->server;

    if (!run->deadline_ns)
        return;
    run->deadline_ns = 0;
    list_remove(&run->deadline_link);
    if (list_empty(&s->exec->deadlines))
        uv_timer_stop(&s->exec->deadline_timer);
}

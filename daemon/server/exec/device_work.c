#include "server/exec/device_work.h"

#include "server/exec/device_watchdog.h"
#include "server/exec/room.h"

void device_work_submitted(struct server *s, struct run *run)
{
    const unsigned device = run->device->index;

    s->exec->urgent_running[device] += run->priority != PRIORITY_LOW;
    s->exec->jobs_running[device]++;
    s->exec->jobs_begun[device]++;
    s->exec->n_jobs_running++;
    s->active = true;
    if (!uv_is_active((uv_handle_t *)&s->exec->device_watchdog_timer))
        device_watchdog_watch(s);
}

void device_work_ended(struct server *s, struct run *run)
{
    const unsigned device = run->device->index;

    s->exec->urgent_running[device] -= run->priority != PRIORITY_LOW;
    s->exec->jobs_running[device]--;
    s->exec->n_jobs_running--;
    s->active = true;
}

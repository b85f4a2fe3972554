#include "server/exec/device_work.h"

#include "server/exec/device_watchdog.h"
#include "server/exec/room.h"

/* Publishes the owner of the device's oldest job. */
static void note_oldest(struct server *s, unsigned device)
{
    const struct list *first = list_first(&s->exec->on_device[device]);
    struct activity_job *oldest = &s->activity.oldest[device];
    const struct step *step;
    const struct tensor *t;
    const struct run *run;
    const struct connection *c;

    if (!first) {
        activity_disown(&oldest->owner);
        return;
    }
    run = list_entry(first, struct run, device_link);
    c = run->stream->connection;
    step = &run->commands.steps[0];
    t = step_operands(step) ? &run->commands.tensors[step->tensors[0]] : NULL;
    activity_own(&oldest->owner, run->commands.ops[0]->name, c->pid, c->uid);
    activity_store(&oldest->n_ops, run->commands.n_steps);
    activity_store(&oldest->rank, t ? t->rank : 0);
    for (unsigned i = 0; t && i < t->rank; i++)
        activity_store(&oldest->shape[i], t->shape[i]);
    activity_store(&oldest->dtype, t ? (unsigned)t->dtype : ACTIVITY_NO_DTYPE);
}

void device_work_submitted(struct server *s, struct run *run)
{
    const unsigned device = run->device->index;

    s->exec->urgent_running[device] += run->priority != PRIORITY_LOW;
    s->exec->jobs_running[device]++;
    s->exec->jobs_begun[device]++;
    s->exec->n_jobs_running++;
    list_append(&s->exec->on_device[device], &run->device_link);
    if (s->exec->jobs_running[device] == 1)
        note_oldest(s, device);
    s->active = true;
    if (!uv_is_active((uv_handle_t *)&s->exec->device_watchdog_timer))
        device_watchdog_watch(s);
}

void device_work_ended(struct server *s, struct run *run)
{
    const unsigned device = run->device->index;
    const bool oldest = list_first(&s->exec->on_device[device]) == &run->device_link;

    s->exec->urgent_running[device] -= run->priority != PRIORITY_LOW;
    s->exec->jobs_running[device]--;
    s->exec->n_jobs_running--;
    list_remove(&run->device_link);
    if (oldest)
        note_oldest(s, device);
    s->active = true;
}

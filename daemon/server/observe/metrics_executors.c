/* The metrics of executors. */
#include "server/observe/executors.h"
#include "server/observe/metrics.h"
#include "server/observe/room.h"

METRIC(executors)
{
    struct executors x;

    executors_look(m->s, &x);
    for (unsigned state = 0; state <= PROCESS_ENDING; state++) {
        uint64_t n = 0;

        for (unsigned i = 0; i < x.n; i++)
            n += x.all[i].state == state;
        metrics_sample(&m->text, METRIC_executors, "");
        metrics_label(&m->text, "state", executor_state_names[state]);
        metrics_uint(&m->text, n);
    }
}

static struct backend_process_counts counts(const struct metrics *m)
{
    struct executors x;

    executors_look(m->s, &x);
    return x.counts;
}

METRIC_VALUE(executors_started_total, counts(m).started)
METRIC_VALUE(executors_replaced_total, counts(m).replaced)
METRIC_VALUE(executor_faults_total, counts(m).faults)
METRIC_VALUE(executor_jobs_ended_total, counts(m).ended_jobs)

METRIC(executor_device_seconds_total)
{
    for (unsigned kind = ISOLATE_NONE; kind < ISOLATE_COUNT; kind++) {
        metrics_sample(&m->text, METRIC_executor_device_seconds_total, "");
        metrics_label(&m->text, "domain", executor_domain_names[kind]);
        metrics_double(&m->text, m->s->observe->executor_device_us[kind] * 1e-6);
    }
}

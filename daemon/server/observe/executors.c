#include "server/observe/executors.h"

#include "server/peer/access.h"
#include "util/clock.h"

const char *const executor_domain_names[ISOLATE_COUNT] = {
    [ISOLATE_NONE] = "common", [ISOLATE_USER] = "user", [ISOLATE_CONNECTION] = "connection"};

const char *const executor_state_names[PROCESS_ENDING + 1] = {[PROCESS_STARTING] = "starting",
                                                              [PROCESS_SPARE] = "spare",
                                                              [PROCESS_SERVING] = "serving",
                                                              [PROCESS_ENDING] = "ending"};

/* Processes work for all devices of their backend: the first device is asked. */
static bool is_first_of_its_backend(const struct server *s, unsigned device)
{
    for (unsigned i = 0; i < device; i++)
        if (s->devices.all[i]->backend == s->devices.all[device]->backend)
            return false;
    return true;
}

void executors_look(const struct server *s, struct executors *ret)
{
    ret->n = 0;
    ret->counts = (struct backend_process_counts){.started = 0};
    for (unsigned i = 0; i < s->devices.count; i++) {
        struct backend_device *d = s->devices.all[i];
        struct backend_process_counts counts = {.started = 0};

        if (!d->backend->processes || !is_first_of_its_backend(s, i))
            continue;
        ret->n += d->backend->processes(d, ret->all + ret->n, BACKEND_MAX_PROCESSES - ret->n, &counts);
        ret->counts.started += counts.started;
        ret->counts.replaced += counts.replaced;
        ret->counts.faults += counts.faults;
        ret->counts.ended_jobs += counts.ended_jobs;
    }
}

int executors_pid(const struct executors *x, uint64_t domain)
{
    for (unsigned i = 0; i < x->n; i++)
        if (x->all[i].state == PROCESS_SERVING && x->all[i].domain == domain)
            return x->all[i].pid;
    return 0;
}

/* ---- stats ---- */

static const struct connection *connection_of(const struct server *s, uint64_t number)
{
    list_for_each_safe (node, after, peers_connections(s)) {
        const struct connection *c = list_entry(node, struct connection, link);

        if (domain_connection(c->number) == number)
            return c;
    }
    return NULL;
}

static struct executor_row row_of(const struct server *s, const struct backend_process *process)
{
    struct executor_row row = {.process = process};

    row.kind = domain_kind(process->domain, &row.number);
    row.has_domain = process->state == PROCESS_SERVING || row.kind != ISOLATE_NONE;
    if (row.kind == ISOLATE_CONNECTION)
        row.client = connection_of(s, row.number);
    row.uid = row.kind == ISOLATE_USER ? (uid_t)row.number : row.client ? row.client->uid : (uid_t)-1;
    return row;
}

static bool may_see_row(const struct connection *viewer, const struct executor_row *row)
{
    switch (row->kind) {
    case ISOLATE_USER:
        return may_see(viewer, (uid_t)row->number);
    case ISOLATE_CONNECTION:
        return row->client ? may_see(viewer, row->client->uid) : access_allows(viewer, ACCESS_ADMINISTER);
    default:
        return true;
    }
}

void executors_each(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct executor_rows *x = of;
    const struct executor_row *row = &x->rows[i];
    const struct backend_process *p = row->process;
    const struct connection *client = row->client;

    rpc_write_record(out, RECORD(executor_map, .pid = (uint64_t)p->pid, .state = executor_state_names[p->state],
                                 .domain = row->has_domain ? executor_domain_names[row->kind] : NULL,
                                 .uid = {row->uid != (uid_t)-1, row->uid}, .identity = identity_of(x->server, row->uid),
                                 .connection = {row->kind == ISOLATE_CONNECTION, row->number},
                                 .client_pid = {client != NULL, client ? (uint64_t)client->pid : 0}, .jobs = p->jobs,
                                 .uptime_s = clock_us_between(p->started_ns, x->now_ns) * 1e-6,
                                 .device_us = (double)p->device_ns * 1e-3));
}

struct executor_counters_map executors_rows(const struct connection *viewer, struct executor_rows *ret)
{
    const struct backend_process_counts *counts = &ret->all.counts;

    ret->server = viewer->server;
    ret->now_ns = clock_now_ns();
    ret->n = 0;
    executors_look(viewer->server, &ret->all);
    for (unsigned i = 0; i < ret->all.n; i++) {
        ret->rows[ret->n] = row_of(viewer->server, &ret->all.all[i]);
        ret->n += may_see_row(viewer, &ret->rows[ret->n]);
    }
    return (struct executor_counters_map){.started = counts->started,
                                          .replaced = counts->replaced,
                                          .faults = counts->faults,
                                          .jobs_ended = counts->ended_jobs};
}

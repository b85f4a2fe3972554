#include "server/observe/executors.h"

#include "server/observe/clients.h"
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

/* A process and whose it is. */
struct executor_row {
    const struct backend_process *process;
    bool has_domain;
    enum isolation kind;
    uint64_t number;
    uid_t uid;                       /* or an identity's number; (uid_t)-1: not known */
    const struct connection *client; /* with ISOLATE_CONNECTION, while the client is connected */
};

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

static void write_row(struct rpc_output *out, const struct server *s, const struct executor_row *row, uint64_t now)
{
    const struct backend_process *p = row->process;
    const bool of_connection = row->kind == ISOLATE_CONNECTION;

    rpc_write_map(out, 5 + row->has_domain + (row->uid != (uid_t)-1) + uid_is_identity(row->uid) + of_connection +
                           (row->client != NULL));
    rpc_write_entry_uint(out, "pid", (uint64_t)p->pid);
    rpc_write_entry_text(out, "state", executor_state_names[p->state]);
    if (row->has_domain)
        rpc_write_entry_text(out, "domain", executor_domain_names[row->kind]);
    if (row->uid != (uid_t)-1)
        rpc_write_entry_uint(out, "uid", row->uid);
    write_identity(out, s, row->uid);
    if (of_connection)
        rpc_write_entry_uint(out, "connection", row->number);
    if (row->client)
        rpc_write_entry_uint(out, "client_pid", (uint64_t)row->client->pid);
    rpc_write_entry_uint(out, "jobs", p->jobs);
    rpc_write_entry_double(out, "uptime_s", clock_us_between(p->started_ns, now) * 1e-6);
    rpc_write_entry_double(out, "device_us", (double)p->device_ns * 1e-3);
}

void executors_write(struct rpc_output *out, const struct connection *viewer)
{
    const struct server *s = viewer->server;
    const uint64_t now = clock_now_ns();
    uint32_t n = 0;
    struct executors x;
    size_t count_at;

    executors_look(s, &x);
    rpc_write_text(out, "executors");
    count_at = rpc_write_array_head(out);
    for (unsigned i = 0; i < x.n; i++) {
        const struct executor_row row = row_of(s, &x.all[i]);

        if (!may_see_row(viewer, &row))
            continue;
        write_row(out, s, &row, now);
        n++;
    }
    rpc_patch_array_head(out, count_at, n);
    rpc_write_text(out, "executor_counts");
    rpc_write_map(out, 4);
    rpc_write_entry_uint(out, "started", x.counts.started);
    rpc_write_entry_uint(out, "replaced", x.counts.replaced);
    rpc_write_entry_uint(out, "faults", x.counts.faults);
    rpc_write_entry_uint(out, "jobs_ended", x.counts.ended_jobs);
}

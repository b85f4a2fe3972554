#include "server/exec/exec.h"

#include <stdlib.h>

#include "server/code/code.h"
#include "server/exec/room.h"
#include "server/exec/stream.h"
#include "server/memory/connection_resources.h"
#include "server/peer/request.h"

const size_t run_state_bytes = sizeof(struct run);

/* ---- the room ---- */

int exec_new(struct server *s, const struct run_observer *observer, struct error *e)
{
    struct exec *x = s->exec = calloc(1, sizeof(*x));

    if (!x)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start");
    x->observer = observer;
    list_init(&x->programs);
    list_init(&x->yielding);
    for (unsigned i = 0; i < BACKEND_MAX_DEVICES; i++)
        for (unsigned j = 0; j < PRIORITY_COUNT; j++)
            list_init(&x->free_queues[i][j]);
    deadlines_init(s);
    device_watchdog_init(s);
    return timelines_init(s, e);
}

void exec_stop(struct server *s)
{
    timelines_stop(s);
    device_watchdog_stop(s);
    uv_close((uv_handle_t *)&s->exec->deadline_timer, NULL);
}

void exec_free(struct server *s)
{
    if (!s->exec)
        return;
    device_queues_free(s);
    timelines_free(s);
    free(s->exec);
    s->exec = NULL;
}

void exec_reload(struct server *s)
{
    device_watchdog_reload(s);
}

/* ---- turns of the loop ---- */

void exec_poll(struct server *s)
{
    struct exec *x = s->exec;

    /* First: a run that waits for its timeline word holds its client's stream up. */
    if (!list_empty(&x->held.users))
        timelines_poll(s);
    if (x->n_jobs_running && !uv_is_active((uv_handle_t *)&x->device_watchdog_timer))
        device_watchdog_watch(s);
    for (unsigned i = 0; (x->n_jobs_running || s->woken) && i < s->devices.count; i++)
        if (x->jobs_running[i] || s->woken) {
            struct backend_device *device = s->devices.all[i];

            x->polls++;
            device->backend->poll(device);
            s->active = s->active || device->active;
            device->active = false;
        }
    s->woken = false;
    if (!list_empty(&x->yielding))
        streams_end_yielding(s);
}

void exec_arm(struct server *s)
{
    const struct exec *x = s->exec;

    for (unsigned i = 0; x->n_jobs_running && i < s->devices.count; i++)
        if (x->jobs_running[i])
            s->devices.all[i]->backend->arm(s->devices.all[i]);
    if (!list_empty(&x->held.users))
        timelines_arm(s);
}

bool exec_ends_soon(const struct server *s, uint64_t now_ns)
{
    const struct exec *x = s->exec;

    for (unsigned i = 0; x->n_jobs_running && i < s->devices.count; i++) {
        const struct backend_device *d = s->devices.all[i];

        if (x->jobs_running[i] && d->backend->ends_soon && d->backend->ends_soon(d, now_ns))
            return true;
    }
    return false;
}

bool exec_has_forecasts(const struct server *s)
{
    const struct exec *x = s->exec;

    for (unsigned i = 0; x->n_jobs_running && i < s->devices.count; i++)
        if (x->jobs_running[i] && s->devices.all[i]->backend->ends_soon)
            return true;
    return false;
}

bool exec_may_complete(const struct server *s)
{
    const struct exec *x = s->exec;

    if (!list_empty(&x->held.users))
        return true;
    for (unsigned i = 0; x->n_jobs_running && i < s->devices.count; i++)
        if (x->jobs_running[i] && s->devices.all[i]->backend->spin)
            return true;
    return false;
}

/* ---- numbers ---- */

unsigned exec_jobs(const struct server *s)
{
    return s->exec->n_jobs_running;
}

unsigned exec_jobs_on(const struct server *s, const struct backend_device *device)
{
    return s->exec->jobs_running[device->index];
}

uint64_t exec_jobs_begun_on(const struct server *s, const struct backend_device *device)
{
    return s->exec->jobs_begun[device->index];
}

unsigned exec_programs(const struct connection *c)
{
    return c->exec->programs.used;
}

unsigned exec_queued(const struct connection *c)
{
    return c->exec->queued;
}

/* ---- a connection's ---- */

void exec_limit_connection(struct connection *c)
{
    c->exec->programs.max = (uint32_t)c->server->config.programs;
}

static int begin(struct connection *c, struct error *e)
{
    struct connection_exec *x = c->exec = calloc(1, sizeof(*x));

    if (!x)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for another connection; try again later");
    idtable_init(&x->programs, (uint32_t)c->server->config.programs);
    x->run_memory = (struct command_memory){.account = c->account, .quota = QUOTA_WAITING, .bytes = &c->request_bytes};
    x->program_memory =
        (struct command_memory){.account = c->account, .quota = QUOTA_PROGRAMS, .bytes = &x->program_bytes};
    return 0;
}

/* Its jobs may have been in either domain. */
static void end_domains(const struct connection *c)
{
    const struct server *s = c->server;

    for (unsigned i = 0; i < s->devices.count; i++) {
        struct backend_device *d = s->devices.all[i];

        if (!d->backend->domain_end)
            continue;
        d->backend->domain_end(d, domain_of(c->uid, c->number));
        d->backend->domain_end(d, domain_of_profiling(c->uid, c->number));
    }
}

static void end(struct connection *c)
{
    run_stop_all(c, RUN_ABANDONED);
    programs_drop_all(c);
    end_domains(c);
}

static void free_part(struct connection *c)
{
    if (!c->exec)
        return;
    for (unsigned i = 0; i < STREAMS_MAX; i++)
        stream_free(c->exec->streams[i]);
    timelines_close(c->server, c->exec->timelines);
    idtable_free(&c->exec->programs);
    free(c->exec);
    c->exec = NULL;
}

const struct connection_part connection_exec_part = {.begin = begin, .end = end, .free = free_part};

/* ---- the method release: gives up a buffer, an inline reference, a program, a module or a kernel ---- */

static int bad_argument(struct error *e, const char *key, const char *why)
{
    error_set(e, ERROR_INVALID_ARGUMENT, "%s", why);
    return error_detail_text(e, "key", key);
}

void handle_release(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct connection *c = r->connection;
    unsigned given = 0;
    struct error e;
    int result;

    (void)fds;
    for (unsigned i = RELEASE_buffer; i <= RELEASE_kernel; i++)
        given += args[i].present;
    if (given != 1)
        result = bad_argument(&e, "buffer", "release takes one of `buffer`, `ipc`, `program`, `module` and `kernel`");
    else if (args[RELEASE_buffer].present)
        result = connection_release_buffer(c, args[RELEASE_buffer].u, &e);
    else if (args[RELEASE_ipc].present)
        result = connection_release_inline(c, &args[RELEASE_ipc], &e);
    else if (args[RELEASE_module].present)
        result = connection_release_module(c, args[RELEASE_module].u, &e);
    else if (args[RELEASE_kernel].present)
        result = connection_release_kernel(c, args[RELEASE_kernel].u, &e);
    else
        result = connection_release_program(c, args[RELEASE_program].u, &e);
    if (result < 0)
        request_end_error(r, &e);
    else
        request_end_empty(r);
}

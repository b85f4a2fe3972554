#include "server/observe/observe.h"

#include <stdlib.h>

#include "server/code/code.h"
#include "server/observe/room.h"
#include "server/peer/peers.h"

/* ---- the room ---- */

int observe_new(struct server *s, struct error *e)
{
    struct observe *o = s->observe = calloc(1, sizeof(*o));

    if (!o)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start");
    o->server = s;
    list_init(&o->traces);
    list_init(&o->walks);
    o->profile = profile_new();
    o->latencies = latency_table_new();
    if (!o->profile || !o->latencies)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start");
    sampling_init(s);
    return readings_init(s, e);
}

void observe_stop(struct server *s)
{
    sampling_close(s);
    readings_close(s);
}

bool observe_is_busy(const struct server *s)
{
    return s->observe->sampling.busy || s->observe->readings.busy;
}

void observe_free(struct server *s)
{
    if (!s->observe)
        return;
    profile_free(s->observe->profile);
    latency_table_free(s->observe->latencies);
    free(s->observe->readings.read);
    free(s->observe);
    s->observe = NULL;
}

/* ---- times that come after the reply ---- */

static void late_expect(struct connection *c, const struct run *run, uint64_t row)
{
    c->server->observe->late[run->job.token % LATE_MAX] =
        (struct late){.token = run->job.token, .row = row, .of = c, .op = latency_op_of(c->server, run)};
}

static void late_timed(struct server *s, uint64_t token, const struct backend_times *times)
{
    struct late *late = &s->observe->late[token % LATE_MAX];

    if (!token)
        return;
    trace_timed(s, token, times);
    if (late->token != token)
        return;
    late->token = 0;
    profile_time(s->observe->profile, late->row, times->us);
    latency_note_device(s, late->of, late->op, times->us);
}

static void late_forget(const struct connection *c)
{
    for (unsigned i = 0; i < LATE_MAX; i++)
        if (c->server->observe->late[i].of == c)
            c->server->observe->late[i].of = NULL;
}

/* ---- runs ---- */

static void note_failure(struct connection *c, const struct run *run)
{
    const struct command_list *b = &run->commands;
    const char *op = b->n_steps ? b->ops[0]->name : "-";
    const struct error_detail *kernel;

    if (run->stop != RUN_GOES_ON)
        return;
    if (b->n_steps == 1) {
        const struct op_call call = command_list_call(b, 0);

        profile_add_error(c->server->observe->profile, c->uid, &call, run->device, b->steps[0].variant_used);
    }
    kernel = error_find(&run->error, "kernel");
    event_fault(c, run->device ? run->device->info.uuid : "-", kernel ? kernel->text : op, &run->error);
}

/* Returns the row of a single op; 0: none. */
static uint64_t note_in_profile(const struct connection *c, const struct run *run, const struct latency *latency)
{
    const struct command_list *b = &run->commands;
    struct profile *profile = c->server->observe->profile;
    uint64_t row = 0;

    if (run->program) /* program_ran() reports its ops */
        return 0;
    for (unsigned i = 0; i < b->n_steps; i++) {
        const struct op_call call = command_list_call(b, i);

        if (b->n_steps == 1)
            row = profile_add(profile, c->uid, &call, run->device, b->steps[0].variant_used, run->samples,
                              run->job.n_samples, latency);
        else /* several ops have one time together: each is only counted */
            profile_count(profile, c->uid, &call, run->device, b->steps[i].variant_used, 1);
    }
    return row;
}

static void ended(const struct request *r, const struct run *run, double device_us, double total_us, uint64_t now_ns)
{
    struct connection *c = r->connection;
    struct latency latency;
    uint64_t ignored, row;

    if (run->job.started_ns) {
        c->statistics->device_us += device_us;
        account_add_device_us(c->account, device_us, now_ns);
        c->server->totals.device_us[run->device->index] += device_us;
        if (run->device->backend->processes)
            c->server->observe->executor_device_us[domain_kind(run->job.domain, &ignored)] += device_us;
    }
    trace_run(r, run, now_ns);
    if (r->answered)
        return;
    if (run->failed) {
        note_failure(c, run);
        return;
    }
    if (run->counters) /* the run's time says nothing of the op's */
        return;
    latency_of(run, total_us, &latency);
    latency_note(c, run, &latency, now_ns);
    row = note_in_profile(c, run, &latency);
    if (run->job.timed_later)
        late_expect(c, run, row);
}

static void program_ran(struct server *s, uid_t uid, const struct op_call *call, const struct backend_device *device,
                        const char *variant, uint64_t count)
{
    profile_count(s->observe->profile, uid, call, device, variant, count);
}

void observe_timed(void *server, uint64_t token, const struct backend_times *times)
{
    late_timed(server, token, times);
}

const struct run_observer observe_runs = {.ended = ended, .program_ran = program_ran, .wants_times = trace_records};
const struct compile_observer observe_compiles = {.ended = trace_compile};

/* ---- a connection's part ---- */

static int begin(struct connection *c, struct error *e)
{
    c->statistics = calloc(1, sizeof(*c->statistics));
    return c->statistics ? 0 : error_set(e, ERROR_OUT_OF_MEMORY, "no memory for another connection; try again later");
}

/* A `clients` reply that would continue at this connection continues at the next one. */
static void pass_by(const struct connection *c)
{
    list_for_each_safe (node, after, &c->server->observe->walks) {
        struct clients_walk *walk = list_entry(node, struct clients_walk, link);

        if (walk->at == &c->link)
            walk->at = c->link.next;
    }
}

static void free_part(struct connection *c)
{
    if (!c->statistics)
        return;
    pass_by(c);
    late_forget(c);
    trace_leave(c);
    free(c->statistics->latencies);
    free(c->statistics);
    c->statistics = NULL;
}

const struct connection_part connection_statistics_part = {.begin = begin, .free = free_part};

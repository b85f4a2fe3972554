#include "server/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/connection.h"
#include "server/pump.h"
#include "server/request.h"
#include "util/clock.h"

/* ---- beginning ---- */

static void job_done(struct backend_job *job)
{
    struct run *run = list_entry(job, struct run, job);
    struct request *r = list_entry(run, struct request, run);

    pump_done(r->connection->server, run->device);
    run_finish(r);
}

static void fail_run(struct run *run, const struct error *e)
{
    if (!run->failed) {
        run->failed = true;
        run->error = *e;
    }
}

/* Fills the job's memories; all mappings are open. */
static void bind_operands(struct run *run)
{
    for (unsigned i = 0; i < run->call.op->n_inputs + run->call.op->n_outputs; i++) {
        struct mapping *m = run->operands[i].mapping;
        struct backend_operand *operand = &run->job.operands[i];
        struct error e;

        if (!m)
            continue;
        operand->memory = m->memory;
        if (!operand->extent || operand->offset + operand->extent <= m->memory->size)
            continue;
        error_set(&e, ERROR_OUT_OF_BOUNDS, "the allocation has %llu bytes, less than was declared",
                  (unsigned long long)m->memory->size);
        error_detail_number(&e, "needed", (int64_t)(operand->offset + operand->extent));
        error_detail_number(&e, "size", (int64_t)m->memory->size);
        fail_run(run, &e);
    }
}

static void mappings_ready(struct run *run)
{
    run->ready_ns = clock_now_ns();
    if (run->map_started_ns)
        run->map_us = clock_us_between(run->map_started_ns, run->ready_ns);
    if (!run->failed)
        bind_operands(run);
}

static void on_mapped(struct mapping_waiter *waiter, bool ok)
{
    struct operand_ref *operand = list_entry(waiter, struct operand_ref, waiter);
    struct request *r = waiter->context;
    struct run *run = &r->run;

    operand->waiting = false;
    if (!ok)
        fail_run(run, &operand->mapping->error);
    if (--run->maps_pending)
        return;
    mappings_ready(run);
    stream_advance(run->stream);
}

/* Waits for the mappings that are not open yet. */
static void wait_for_mappings(struct request *r)
{
    struct run *run = &r->run;

    run->map_started_ns = 0;
    run->maps_pending = 1; /* so that nothing goes on before all have been looked at */
    for (unsigned i = 0; i < PLAN_MAX_OPERANDS; i++) {
        struct operand_ref *operand = &run->operands[i];

        if (!operand->mapping || mapping_is_open(operand->mapping))
            continue;
        run->map_started_ns = r->received_ns;
        run->maps_pending++;
        operand->waiting = true;
        operand->waiter.context = r;
        operand->waiter.ready = on_mapped;
        mapping_wait(operand->mapping, &operand->waiter);
    }
    if (--run->maps_pending == 0)
        mappings_ready(run);
}

void handle_run(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct connection *c = r->connection;
    struct error e;

    (void)fds;
    if (run_decode(r, args, &e) < 0) {
        request_end_error(r, &e);
        return;
    }
    r->run.job.done = job_done;
    c->server->counters.jobs++;
    if (stream_enqueue(c, args[RUN_stream].u, r, &e) < 0) {
        run_release(&r->run);
        request_end_error(r, &e);
        return;
    }
    list_append(&c->runs, &r->run.order_link);
    if (r->run.deadline_ns)
        deadline_add(r);
    wait_for_mappings(r);
    if (!r->run.maps_pending)
        stream_advance(r->run.stream);
}

/* ---- end ---- */

void run_release(struct run *run)
{
    for (unsigned i = 0; i < PLAN_MAX_OPERANDS; i++) {
        struct operand_ref *operand = &run->operands[i];

        if (operand->waiting)
            mapping_stop_waiting(&operand->waiter);
        operand->waiting = false;
        if (operand->mapping)
            mapping_unuse(operand->mapping);
        operand->mapping = NULL;
    }
    if (run->samples != &run->sample)
        free(run->samples);
    run->samples = NULL;
}

static const struct error *stop_error(const struct run *run, struct error *into)
{
    switch (run->stop) {
    case RUN_DEADLINE:
        error_set(into, ERROR_DEADLINE_EXCEEDED, "deadline_ms passed before the job ended%s",
                  run->job.started_ns ? "; the outputs are undefined" : "; it had not started");
        return into;
    case RUN_CANCELLED:
    case RUN_ABANDONED:
        error_set(into, ERROR_CANCELLED, "the job was cancelled%s",
                  run->job.started_ns ? "; the outputs are undefined" : " before it started");
        return into;
    case RUN_GOES_ON:
        break;
    }
    return &run->error;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Nearest-rank percentile of sorted samples. */
static double percentile(const double *sorted, uint32_t n, double p)
{
    uint32_t rank = (uint32_t)ceil(p * n);

    return sorted[rank ? rank - 1 : 0];
}

static double median(const double *sorted, uint32_t n)
{
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void write_if_measured(struct rpc_output *out, const char *key, double us)
{
    if (!isnan(us))
        rpc_write_entry_double(out, key, us);
}

static void write_timings(struct rpc_output *out, const struct request *r, double total_us)
{
    const struct run *run = &r->run;
    const uint32_t n = run->job.n_samples;
    const bool many = run->job.repeat > 1 && n, started = run->job.started_ns != 0;
    double *sorted = many ? malloc(n * sizeof(double)) : NULL;
    uint32_t entries = 1;

    entries += (started ? 2U : 0) + !isnan(run->map_us) + !isnan(run->job.h2d_us) + !isnan(run->job.d2h_us);
    entries += (n ? 1U : 0) + (sorted ? 4U : 0) + (many ? 1U : 0);
    if (sorted) {
        memcpy(sorted, run->samples, n * sizeof(double));
        qsort(sorted, n, sizeof(double), by_value);
    }
    rpc_write_text(out, "timings");
    rpc_write_map(out, entries);
    if (started) {
        rpc_write_entry_double(out, "recv_to_start_us", clock_us_between(r->received_ns, run->job.started_ns));
        rpc_write_entry_double(out, "queue_us", clock_us_between(run->ready_ns, run->job.started_ns));
    }
    write_if_measured(out, "map_us", run->map_us);
    write_if_measured(out, "h2d_us", run->job.h2d_us);
    write_if_measured(out, "d2h_us", run->job.d2h_us);
    if (n)
        rpc_write_entry_double(out, run->device->backend->execution_key, sorted ? median(sorted, n) : run->samples[0]);
    if (sorted) {
        rpc_write_entry_double(out, "min", sorted[0]);
        rpc_write_entry_double(out, "median", median(sorted, n));
        rpc_write_entry_double(out, "p90", percentile(sorted, n, 0.9));
        rpc_write_entry_double(out, "max", sorted[n - 1]);
    }
    if (many) {
        rpc_write_text(out, "samples");
        rpc_write_array(out, n);
        for (uint32_t i = 0; i < n; i++)
            rpc_write_double(out, run->samples[i]);
    }
    rpc_write_entry_double(out, "total_us", total_us);
    free(sorted);
}

static void reply(struct request *r)
{
    const struct run *run = &r->run;
    struct server *s = r->connection->server;
    double total_us = clock_us_between(r->received_ns, clock_now_ns());
    struct rpc_output *out;
    struct error e;

    if (run->failed) {
        s->counters.jobs_cancelled += run->stop != RUN_GOES_ON;
        if (run->stop == RUN_GOES_ON)
            profile_add_error(s->profile, &run->call, run->device, run->job.variant_used);
        request_error(r, stop_error(run, &e));
        return;
    }
    profile_add(s->profile, &run->call, run->device, run->job.variant_used, run->samples, run->job.n_samples, total_us);
    out = request_result(r);
    if (!out)
        return;
    rpc_write_map(out, 3);
    write_timings(out, r, total_us);
    rpc_write_entry_text(out, "device", run->device->info.uuid);
    rpc_write_entry_text(out, "variant", run->job.variant_used ? run->job.variant_used : "");
}

void run_finish(struct request *r)
{
    struct connection *c = r->connection;
    struct run *run = &r->run;
    struct stream *stream = run->stream;

    if (run->job.failed)
        fail_run(run, &run->job.error);
    reply(r);
    if (run->deadline_ns)
        deadline_remove(r);
    stream_remove(r);
    list_remove(&run->order_link);
    run_release(run);
    /* The stream may go with the connection's last request: take its next steps first. */
    c->inflight++;
    request_end(r);
    barriers_advance(c);
    stream_advance(stream);
    c->inflight--;
    if (c->closed)
        connection_free_if_done(c);
}

/* ---- stopping ---- */

void run_stop(struct request *r, enum run_stop why)
{
    struct run *run = &r->run;

    if (run->stop != RUN_ABANDONED)
        run->stop = why;
    if (run->state != RUN_QUEUED) {
        atomic_store(&run->job.cancel, true); /* it ends through done() */
        return;
    }
    run->failed = true;
    run_finish(r);
}

void handle_cancel(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct request *target = request_find(r->connection, (uint32_t)args[CANCEL_msgid].u);
    struct rpc_output *out = request_result(r);
    bool found = target && target != r && target->method == METHOD_RUN && target->run.stop == RUN_GOES_ON;

    (void)fds;
    if (out) {
        rpc_write_map(out, 1);
        rpc_write_entry_bool(out, "cancelled", found);
    }
    if (found)
        run_stop(target, RUN_CANCELLED);
    request_end(r);
}

#include "server/exec/run.h"

#include <stdlib.h>

#include "server/code/code.h"
#include "server/exec/exec.h"
#include "server/exec/room.h"
#include "server/memory/connection_resources.h"
#include "server/peer/request.h"
#include "util/clock.h"

static void run_deadline(struct run *run);
static void run_finish(struct run *run);

/* ---- deadlines: when one passes, the run is stopped; one timer is set to the earliest ---- */

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

/* run_deadline() is called at `at_ns`, or earlier where the run has an earlier deadline. */
static void deadline_set(struct run *run, uint64_t at_ns)
{
    struct server *s = run->stream->connection->server;

    if (run->deadline_ns && run->deadline_ns <= at_ns)
        return;
    if (!run->deadline_ns)
        list_append(&s->exec->deadlines, &run->deadline_link);
    run->deadline_ns = at_ns;
    arm(s);
}

/* The run has no deadline any more. */
static void deadline_remove(struct run *run)
{
    struct server *s = run->stream->connection->server;

    if (!run->deadline_ns)
        return;
    run->deadline_ns = 0;
    list_remove(&run->deadline_link);
    if (list_empty(&s->exec->deadlines))
        uv_timer_stop(&s->exec->deadline_timer);
}

/* ---- a run's life ---- */

enum {
    SAMPLE_ONE_IN = 61 /* an untimed run in so many is timed; not a power of two, since clients' loops often are */
};
/* How long a device may go on with a run whose client is gone, where run_end_now() ends it. */
enum { ABANDONED_NS = 1000000000 };

/* ---- beginning ---- */

/* Names the kernel that the error blames. The op's index comes from an executor: it may be any number. */
static void name_kernel(const struct command_list *commands, struct error *e)
{
    const struct error_detail *index = error_find(e, "op_index");
    const int64_t at = commands->n_steps == 1 ? 0 : index && !index->is_text ? index->number : -1;

    if (at >= 0 && at < commands->n_steps)
        error_detail_text(e, "kernel", commands->ops[at]->name);
}

/* A kernel that broke its context, or had to be ended, is a fault of its user. All jobs that end in one look at the
 * device have the same cause: they ran in one process. */
static void note_fault(struct server *s, struct run *run)
{
    const bool faulted = run->job.failed && run->job.error.code == ERROR_DEVICE_FAULT;

    if (faulted)
        name_kernel(&run->commands, &run->job.error);
    if (faulted || run->job.forced)
        account_note_fault(run->stream->connection->account, s->exec->polls, clock_now_ns());
}

static void fail_run(struct run *run, const struct error *e)
{
    if (!run->failed) {
        run->failed = true;
        run->error = *e;
    }
}

/* Ends stopped runs that came back behind others: nothing of them is under way. */
static void end_stopped(struct stream *stream)
{
    struct list *node = list_first(&stream->queue);

    while (node && node != &stream->queue) {
        struct run *run = list_entry(node, struct run, queue_link);

        if (run->state != RUN_OFFERED)
            return;
        node = node->next;
        if (run->stop == RUN_GOES_ON || run->ready || run->done)
            continue;
        run_end(run);
        node = list_first(&stream->queue); /* its end may have ended others */
    }
}

static void job_may_go_on(struct backend_job *job)
{
    struct stream *stream = list_entry(job, struct run, job)->stream;

    end_stopped(stream);
    stream_advance(stream);
}

/* The device gives the job back: it begins again, or ends in its turn. */
static void job_came_back(struct backend_job *job)
{
    struct run *run = list_entry(job, struct run, job);

    note_fault(run->stream->connection->server, run);
    if (job->failed)
        fail_run(run, &job->error);
    if (run->stop != RUN_GOES_ON)
        run->failed = true;
    stream_take_back(run);
}

/* Ends the job's run, and charges its user with the loop's time: a fixed amount for a few steps, the measured time for
 * many. */
static void job_done(struct backend_job *job)
{
    enum { FEW = 8, OF_FEW_NS = 1000 };
    struct run *run = list_entry(job, struct run, job);
    struct server *s = run->stream->connection->server;
    struct account *account = run->stream->connection->account;
    const uint64_t before = run->commands.n_steps > FEW ? clock_thread_ns() : 0;

    note_progress(s, run->device->index, request_of(run)->received_ns);
    note_fault(s, run);
    /* A lost device, or a job without memory, has not written the done word. */
    if (job->failed)
        timeline_write_done(run);
    run_finish(run);
    schedule_charge(&account->turns, before ? clock_thread_ns() - before : OF_FEW_NS);
}

static void note_short(struct run *run, const struct step_operand *operand, uint64_t size)
{
    struct error e;

    error_set(&e, ERROR_OUT_OF_BOUNDS, "the allocation has %llu bytes, less than was declared",
              (unsigned long long)size);
    error_detail_number(&e, "needed", (int64_t)(operand->offset + operand->extent));
    error_detail_number(&e, "size", (int64_t)size);
    fail_run(run, &e);
}

/* Fills in the memories of the steps. All mappings are open. */
static void bind_operands(struct run *run)
{
    for (unsigned i = 0; i < run->commands.n_steps; i++) {
        struct step *step = &run->commands.steps[i];
        const unsigned operands = step_operands(step);

        for (unsigned o = 0; o < operands; o++) {
            const struct mapping *m = run->commands.refs[step->tensors[o]].mapping;
            struct step_operand *operand = &step->operands[o];

            operand->memory = m ? m->memory_id : 0;
            if (m && operand->extent && operand->offset + operand->extent > m->memory->size)
                note_short(run, operand, m->memory->size);
        }
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

/* A mapping may be larger than was declared. Where the quota refuses the true size, the mapping is closed. */
static void check_opened(struct connection *c, struct run *run, struct operand_ref *operand)
{
    struct mapping *m = operand->mapping;
    struct error e;

    if (shared_charge_check(operand->shared, c->pid, &e) == 0)
        return;
    fail_run(run, &e);
    connection_drop_inline(c, m->import.handle);
    mapping_close_soon(m);
}

static void on_mapped(struct mapping_waiter *waiter, bool ok)
{
    struct operand_ref *operand = list_entry(waiter, struct operand_ref, waiter);
    struct run *run = waiter->context;

    operand->waiting = false;
    if (!ok)
        fail_run(run, &operand->mapping->error);
    else
        check_opened(run->stream->connection, run, operand);
    if (--run->maps_pending)
        return;
    mappings_ready(run);
    stream_advance(run->stream);
}

/* Waits for the mappings that are not open yet. */
static void wait_for_mappings(struct run *run)
{
    run->maps_pending = 1; /* held until every mapping was looked at */
    for (unsigned i = 0; i < run->commands.n_tensors; i++) {
        struct operand_ref *operand = &run->commands.refs[i];

        if (!operand->mapping)
            continue;
        if (operand->mapping->state == MAPPING_OPEN) {
            if (operand->shared->unchecked)
                check_opened(run->stream->connection, run, operand);
            continue;
        }
        run->map_started_ns = request_of(run)->received_ns;
        run->maps_pending++;
        operand->waiting = true;
        operand->waiter.context = run;
        operand->waiter.ready = on_mapped;
        mapping_wait(operand->mapping, &operand->waiter);
    }
    if (--run->maps_pending == 0)
        mappings_ready(run);
}

/* Ordered work takes device memory only: no copy of host memory could know when to begin. */
static int check_ordered(const struct run *run, struct error *e)
{
    if (!run->device->signals)
        return error_set(e, ERROR_UNSUPPORTED, "%s does no ordered work; leave ready and done out",
                         run->device->info.uuid);
    for (unsigned i = 0; i < run->commands.n_tensors; i++)
        if (run->commands.refs[i].mapping && !run->commands.refs[i].mapping->device)
            return error_set(e, ERROR_INVALID_ARGUMENT,
                             "ordered work takes device memory only; wait for the reply instead of giving ready and "
                             "done");
    return 0;
}

/* Queues the run and lets it go as far as it can. */
static void enqueue(struct request *r, struct run *run, struct stream *stream)
{
    stream_enqueue(stream, run);
    list_append(&r->connection->unfinished, &r->order_link);
    account_begin_run(r->connection->account);
    wait_for_mappings(run);
    if (!run->maps_pending)
        stream_advance(stream);
}

static void free_counters(struct run *run)
{
    if (!run->counters)
        return;
    request_of(run)->connection->account->counting = false;
    free(run->counters);
    run->counters = run->job.counters = NULL;
}

static void run_release(struct run *run)
{
    if (run->program)
        program_end_run(run);
    command_list_release(&run->commands);
    free_counters(run);
    if (run->samples != &run->sample)
        free(run->samples);
    run->samples = NULL;
}

static void end_refused(struct run *run, const struct error *e)
{
    run_release(run);
    request_end_error(request_of(run), e);
}

void run_refuse(struct run *run, const struct run_options *o, const struct error *e)
{
    struct request *r = request_of(run);
    struct stream *stream;
    struct error ignored;

    if ((!o->ready && !o->done) || !(stream = stream_get(r->connection, o->stream, &ignored)) ||
        timeline_check(stream, o->ready, o->done, &ignored) < 0) {
        end_refused(run, e);
        return;
    }
    /* The caller's stream waits for the done word, which is written when earlier runs have ended. Later runs still wait
     * for the ready word of this one. */
    run_release(run);
    run->job.n_steps = 0;
    run->ready = o->ready;
    run->done = o->done;
    run->failed = true;
    run->error = *e;
    enqueue(r, run, stream);
}

/* Times one run of many for the statistics: also the cheapest way costs a run some. */
static void sample_some(struct server *s, struct run *run)
{
    if (run->job.timing || run->counters || run->device->backend->times_always || run->job.warmup + run->job.repeat > 1)
        return;
    run->sampled = s->exec->observer->wants_times(s, request_of(run)->connection->uid) ||
                   s->exec->untimed[run->device->index]++ % SAMPLE_ONE_IN == 0;
    if (!run->sampled)
        return;
    run->job.timing = TIMING_STATISTIC;
    run->job.token = ++s->exec->tokens;
}

/* A run that counts has a process of its own, and does not make the connection one that launches. */
static void choose_domain(struct connection *c, struct run *run)
{
    if (run->counters) {
        run->job.domain = domain_of_profiling(c->uid, c->number);
        return;
    }
    c->exec->launched = c->exec->launched || run->commands.n_launches;
    run->job.domain = c->exec->launched ? connection_domain(c) : (uint64_t)DOMAIN_COMMON;
}

void run_begin(struct run *run, const struct run_options *o)
{
    struct request *r = request_of(run);
    struct connection *c = r->connection;
    struct stream *stream;
    struct error e;

    if (run->commands.n_launches && account_check_faults(c->account, c->pid, r->received_ns, &e) < 0) {
        run_refuse(run, o, &e);
        return;
    }
    stream = stream_get(c, o->stream, &e);
    if (!stream) {
        end_refused(run, &e);
        return;
    }
    if (o->ready || o->done) {
        if (check_ordered(run, &e) < 0) {
            run_refuse(run, o, &e);
            return;
        }
        if (timeline_check(stream, o->ready, o->done, &e) < 0) {
            end_refused(run, &e);
            return;
        }
    }
    run->ready = o->ready;
    run->done = o->done;
    run->stream = stream;
    if (run->done)
        timeline_set_signal(run);
    run->job.done = job_done;
    run->job.go_on = job_may_go_on;
    run->job.again = job_came_back;
    run->job.owner = c->uid;
    choose_domain(c, run);
    sample_some(c->server, run);
    c->server->counters.jobs++;
    c->server->counters.launches += run->commands.n_launches;
    if (o->deadline_ms)
        deadline_set(run, r->received_ns + o->deadline_ms * 1000000U);
    enqueue(r, run, stream);
}

/* ---- end ---- */

void run_end(struct run *run)
{
    struct request *r = request_of(run);
    struct connection *c = r->connection;

    if (run->job.failed)
        fail_run(run, &run->job.error);
    /* A stopped run stays stopped, even if the device ended it in time: its client may have been told. */
    run->failed = run->failed || run->stop != RUN_GOES_ON;
    run_reply(r, run);
    deadline_remove(run);
    stream_remove(run);
    list_remove(&r->order_link);
    account_end_run(c->account);
    run_release(run);
    request_end(r);
    barriers_advance(c);
}

/* Like run_end(), then advances the run's stream. */
static void run_finish(struct run *run)
{
    struct stream *stream = run->stream;

    run_end(run);
    stream_advance(stream);
}

/* ---- stopping ---- */

void run_cancel_job(struct run *run)
{
    atomic_store(&run->job.cancel, true);
    if (run->state == RUN_SUBMITTED && run->device->backend->cancel)
        run->device->backend->cancel(&run->job);
}

bool run_can_end_now(const struct run *run)
{
    return run->state == RUN_SUBMITTED && run->device->ends && run->job.domain != DOMAIN_COMMON;
}

bool run_end_now(struct run *run)
{
    const bool first = list_first(&run->stream->given) == &run->queue_link;

    run->must_end = true;
    if (first)
        atomic_store(&run->job.end_now, true);
    run_cancel_job(run);
    return first;
}

/* The first reason stays, since the client may have been told of it. The end of the connection overrides it. */
static bool can_stop(const struct run *run, enum run_stop why)
{
    return run->stop == RUN_GOES_ON || (why == RUN_ABANDONED && run->stop != RUN_ABANDONED);
}

/* Stops a run, unless it was stopped before. A run that no device has ends at once. A submitted one ends when the
 * device lets go of it. */
static void run_stop(struct run *run, enum run_stop why)
{
    if (!can_stop(run, why))
        return;
    run->stop = why;
    if (run->state == RUN_SUBMITTED) {
        run_cancel_job(run);
        if (why == RUN_ABANDONED && run_can_end_now(run))
            deadline_set(run, clock_now_ns() + ABANDONED_NS);
        return;
    }
    run->failed = true;
    if ((run->ready || run->done) && why != RUN_ABANDONED)
        stream_advance(run->stream); /* the run ends in its turn, after its word is written */
    else
        run_finish(run);
}

/* The run's deadline has passed. Where run_end_now() ends it now, it is answered then. Otherwise it is answered first,
 * and ends when the device lets go of it. */
static void run_deadline(struct run *run)
{
    deadline_remove(run);
    if (run_can_end_now(run)) {
        if (can_stop(run, RUN_DEADLINE))
            run->stop = RUN_DEADLINE;
        if (run_end_now(run))
            return;
    }
    if (run->state != RUN_SUBMITTED) {
        run_stop(run, RUN_DEADLINE);
        return;
    }
    run_stop(run, RUN_DEADLINE);
    /* Ordered work is answered when its word is written, since the caller's stream waits for the word anyway. */
    if (!run->done && run->stop != RUN_ABANDONED)
        run_reply_early(run);
}

void run_stop_all(struct connection *c, enum run_stop why)
{
    /* From the last run to the first, so that no run begins because an earlier one ended. Stopping a run may end others
     * of its stream, so the search begins anew. */
    for (struct list *node = c->unfinished.prev; node != &c->unfinished;) {
        struct run *run = request_state(list_entry(node, struct request, order_link));

        if (!can_stop(run, why)) {
            node = node->prev;
            continue;
        }
        run_stop(run, why);
        node = c->unfinished.prev;
    }
}

void exec_cancel_all(struct connection *c)
{
    run_stop_all(c, RUN_ENDING);
    list_for_each_safe (node, after, &c->unfinished) {
        struct run *run = request_state(list_entry(node, struct request, order_link));

        if (run_can_end_now(run))
            run_end_now(run);
    }
}

static struct run *run_to_cancel(const struct request *r)
{
    struct run *run = request_is_run(r) ? request_state((struct request *)(uintptr_t)r) : NULL;

    return run && (run->stop == RUN_GOES_ON || run->stop == RUN_CANCELLED) ? run : NULL;
}

bool exec_can_cancel(const struct request *r)
{
    return run_to_cancel(r) != NULL;
}

void exec_cancel(struct request *r)
{
    run_stop(run_to_cancel(r), RUN_CANCELLED);
}

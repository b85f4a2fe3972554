/* Takes the daemon's records: streams, jobs and programs. Thread: the loop. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/memory_ids.h"
#include "executor/serve.h"
#include "util/log.h"

/* The daemon and this process are one program: a record that makes no sense is a fault that nothing can repair. */
static void give_up(const char *what)
{
    log_error("executor", "why=\"the daemon's record makes no sense: %s\"", what);
    _exit(1);
}

static struct served_job *new_job(struct serving *p, const struct record_submit *record)
{
    struct served_job *job;

    if (!record->slot || record->slot > EXECUTOR_JOBS_MAX)
        give_up("slot");
    job = p->jobs[record->slot];
    if (!job) {
        job = p->jobs[record->slot] = calloc(1, sizeof(*job));
        if (!job)
            give_up("no memory for it");
        list_init(&job->stream_link);
        list_init(&job->work_link);
        list_init(&job->list_link);
    }
    if (job->state != SERVED_FREE || record->stream > EXECUTOR_STREAMS_MAX || !p->streams[record->stream])
        give_up("job");
    job->stream = p->streams[record->stream];
    job->slot = record->slot;
    job->serial = record->serial;
    job->state = SERVED_WAITING;
    job->reported = 0;
    job->prepared = false;
    job->samples = &job->sample;
    if (record->repeat > 1)
        job->samples = malloc(record->repeat * sizeof(double));
    if (!job->samples)
        give_up("no memory for its samples");
    return job;
}

/* The backend's own function in place of its number. */
static void translate(const struct serving *p, struct step *step)
{
    struct plan_kernel *kernel = &step->plan.kernel;

    if (step->plan.kind != PLAN_KERNEL)
        return;
    if (kernel->function > EXECUTOR_FUNCTIONS_MAX || !p->functions[kernel->function])
        give_up("function");
    kernel->function = p->functions[kernel->function];
}

static void unpack(const struct serving *p, struct step *steps, uint32_t n, const unsigned char *from, uint32_t size)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t bytes = step_unpack(from, size, &steps[i]);

        if (!bytes)
            give_up("steps");
        translate(p, &steps[i]);
        from += bytes;
        size -= bytes;
    }
}

/* A run of a program has steps of its own: earlier runs may be under way on other memory. The slot may have the steps
 * from an earlier run. */
static void bind(struct served_job *job, const struct served_program *program, const unsigned char *from, uint32_t size)
{
    struct step *steps = job->steps;

    if (job->bound != program->serial)
        memcpy(steps, program->steps, program->n_steps * sizeof(*steps));
    job->bound = program->serial;
    for (uint32_t i = 0; i < program->n_steps; i++) {
        const uint32_t bytes = step_operands(&steps[i]) * (uint32_t)sizeof(steps[i].operands[0]);

        steps[i].variant_used[0] = '\0';

        if (size < bytes)
            give_up("operands");
        memcpy(steps[i].operands, from, bytes);
        from += bytes;
        size -= bytes;
    }
}

/* Room for the job's steps. Few are kept for the slot's next job. */
static struct step *room_for(struct served_job *job, uint32_t n)
{
    if (n > job->room) {
        free(job->steps);
        job->steps = malloc(n * sizeof(*job->steps));
        job->room = n;
        job->bound = 0;
    }
    if (!job->steps)
        give_up("no memory for its steps");
    return job->steps;
}

static struct served_program *new_program(struct serving *p, const struct served_job *job, uint32_t number, uint32_t n)
{
    struct served_program *program = p->programs[number] = calloc(1, sizeof(*program));

    if (program)
        program->steps = malloc(n * sizeof(*program->steps));
    if (!program || !program->steps)
        give_up("no memory for a program");
    program->serial = ++p->programs_made;
    program->n_steps = n;
    program->device = job->stream->device;
    memcpy(program->steps, job->steps, n * sizeof(*program->steps));
    return program;
}

static void take_steps(struct serving *p, struct served_job *job, const struct record_submit *record,
                       const unsigned char *from, uint32_t size)
{
    struct step *steps = room_for(job, record->n_steps);
    struct served_program *program = NULL;

    if (record->program > EXECUTOR_PROGRAMS_MAX || !record->n_steps)
        give_up("program");
    if (record->replay) {
        program = p->programs[record->program];
        if (!program || program->n_steps != record->n_steps)
            give_up("program");
        bind(job, program, from, size);
    } else {
        job->bound = 0;
        unpack(p, steps, record->n_steps, from, size);
        if (record->program)
            program = new_program(p, job, record->program, record->n_steps);
    }
    job->base.program = program ? &program->local : NULL;
}

static void take_counts(struct served_job *job, const struct record_submit *record)
{
    if (record->counts) {
        job->counters = malloc(sizeof(*job->counters));
        if (!job->counters)
            give_up("no memory for its counters");
        job->counters->warm = record->warm;
        counters_clear(job->counters);
    }
    job->base.counters = job->counters;
}

static void take_submit(struct serving *p, const unsigned char *from, uint32_t size)
{
    enum { FEW_STEPS = 4 };
    struct record_submit record;
    struct served_job *job;
    struct served_stream *s;

    memcpy(&record, from, sizeof(record));
    job = new_job(p, &record);
    s = job->stream;
    if (record.n_steps > FEW_STEPS && !p->issuing) {
        p->issuing = true;
        atomic_store_explicit(&p->region->issuing, 1, memory_order_relaxed);
    }
    take_steps(p, job, &record, from + sizeof(record), size - (uint32_t)sizeof(record));
    job->base.steps = job->steps;
    job->base.n_steps = record.n_steps;
    job->base.warmup = record.warmup;
    job->base.repeat = record.repeat;
    job->base.timing = (enum backend_timing)record.timing;
    job->base.token = record.token;
    job->base.window = record.window;
    take_counts(job, &record);
    job->base.owner = record.owner;
    job->base.samples = job->samples;
    job->base.signal = (struct backend_signal){.offset = record.signal_offset, .value = record.signal_value};
    if (record.signal_page)
        job->base.signal.page = memory_by_id(record.signal_page);
    job->base.done = jobs_on_done;
    job->base.failed = job->base.timed_later = false;
    job->base.timer = TIMER_EVENTS;
    job->base.gpu_begin_ns = job->base.gpu_end_ns = 0;
    job->base.ended = 0;
    job->base.n_samples = 0;
    job->base.started_ns = 0;
    job->base.h2d_us = job->base.d2h_us = NAN;
    job->base.impl = NULL;
    atomic_store_explicit(&job->base.cancel, false, memory_order_relaxed);
    list_append(&s->jobs, &job->stream_link);
    if (s->next == &s->jobs)
        s->next = &job->stream_link;
    if (s->next == &job->stream_link)
        jobs_advance(p, s);
}

static void take_stream_new(struct serving *p, const unsigned char *from)
{
    struct record_stream record;
    struct served_stream *s = calloc(1, sizeof(*s));

    memcpy(&record, from, sizeof(record));
    if (!s || !record.stream || record.stream > EXECUTOR_STREAMS_MAX || record.device >= p->n_devices ||
        !atomic_load(&p->active[record.device]))
        give_up("stream");
    s->serving = p;
    s->device = p->devices[record.device];
    list_init(&s->jobs);
    s->next = &s->jobs;
    if (p->backend->stream_new(s->device, (enum backend_priority)record.priority, &s->local, &s->error) == 0)
        s->error.code = ERROR_NONE;
    p->streams[record.stream] = s;
}

static void take_stream_free(struct serving *p, const unsigned char *from)
{
    struct record_stream record;
    struct served_stream *s;

    memcpy(&record, from, sizeof(record));
    s = p->streams[record.stream];
    if (s->local)
        p->backend->stream_free(s->local);
    p->streams[record.stream] = NULL;
    free(s);
}

static void take_cancel(struct serving *p, const unsigned char *from)
{
    struct record_number record;
    struct served_job *job;

    memcpy(&record, from, sizeof(record));
    job = record.number <= EXECUTOR_JOBS_MAX ? p->jobs[record.number] : NULL;
    if (!job || job->serial != record.serial || job->state == SERVED_FREE || job->state == SERVED_ENDED)
        return; /* it has ended meanwhile */
    atomic_store(&job->base.cancel, true);
}

static void take_program_free(struct serving *p, const unsigned char *from)
{
    struct record_number record;
    struct served_program *program;

    memcpy(&record, from, sizeof(record));
    program = p->programs[record.number];
    if (!program)
        return;
    if (program->local && p->backend->program_free)
        p->backend->program_free(program->device, program->local);
    free(program->steps);
    free(program);
    p->programs[record.number] = NULL;
}

static void take_record(struct serving *p, const unsigned char *from, uint32_t size)
{
    uint32_t kind;

    memcpy(&kind, from, sizeof(kind));
    switch ((enum record_kind)kind) {
    case RECORD_STREAM_NEW:
        take_stream_new(p, from);
        return;
    case RECORD_STREAM_FREE:
        take_stream_free(p, from);
        return;
    case RECORD_SUBMIT:
        take_submit(p, from, size);
        return;
    case RECORD_CANCEL:
        take_cancel(p, from);
        return;
    case RECORD_PROGRAM_FREE:
        take_program_free(p, from);
        return;
    default:
        give_up("kind");
    }
}

bool records_take(struct serving *p)
{
    const void *record;
    bool any = false;
    uint32_t size;

    while ((record = ring_peek(&p->in, &size))) {
        take_record(p, record, size);
        ring_next(&p->in);
        any = true;
    }
    if (p->in.corrupt)
        give_up("ring");
    if (any)
        atomic_thread_fence(memory_order_seq_cst); /* the ring's word was stored before */
    if (any && atomic_load_explicit(&p->region->wants_room, memory_order_relaxed) &&
        atomic_exchange(&p->region->wants_room, 0))
        jobs_ring_bell(p);
    return any;
}

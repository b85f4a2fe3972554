/* Streams and jobs on their way to an executor. Thread: loop. */
#include <stdlib.h>
#include <string.h>

#include "backend/memory_ids.h"
#include "executor/front.h"
#include "util/clock.h"

/* backend_job.impl is a struct front_job while an executor has the job; else its stream's address plus one. */
static void set_stream(struct backend_job *job, struct front_stream *s)
{
    job->impl = (char *)s + 1;
}

struct front_job *front_job_of(const struct backend_job *job)
{
    return (uintptr_t)job->impl & 1 ? NULL : job->impl;
}

struct front_job *front_first_of(const struct front_stream *s)
{
    return s->sent ? front_job_of(front_job_at(list_first(&s->jobs))) : NULL;
}

/* ---- streams ---- */

int front_stream_new(struct backend_device *device, enum backend_priority priority, struct backend_stream **ret_stream,
                     struct error *e)
{
    struct front_device *d = front_device(device);
    struct front_stream *s = calloc(1, sizeof(*s));

    if (!s)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a stream");
    s->number = ids_take(&d->front->stream_ids);
    if (!s->number) {
        free(s);
        return error_set(e, ERROR_OUT_OF_MEMORY, "executors have as many streams as they can");
    }
    s->device = d;
    s->priority = priority;
    list_init(&s->jobs);
    list_init(&s->link);
    list_init(&s->on_link);
    list_init(&s->blocked_link);
    list_init(&s->prepared_link);
    list_init(&s->alone_link);
    s->unsent = &s->jobs;
    *ret_stream = (struct backend_stream *)(void *)s;
    return 0;
}

void front_stream_leave(struct front_stream *s)
{
    const struct record_stream record = {.kind = RECORD_STREAM_FREE, .stream = s->number};

    if (!s->on)
        return;
    front_send_record(s->on, &record, sizeof(record));
    list_remove(&s->on_link);
    s->on = NULL;
}

static void join(struct front_stream *s, struct executor *x)
{
    const struct record_stream record = {
        .kind = RECORD_STREAM_NEW, .stream = s->number, .device = s->device->number, .priority = (uint32_t)s->priority};

    front_stream_leave(s);
    front_send_record(x, &record, sizeof(record));
    list_append(&x->streams, &s->on_link);
    s->on = x;
}

void front_stream_free(struct backend_stream *stream)
{
    struct front_stream *s = (struct front_stream *)(void *)stream;

    front_stream_leave(s);
    ids_give(&s->device->front->stream_ids, s->number);
    free(s);
}

/* ---- submission ---- */

static uint32_t behind_record(const struct backend_job *job, bool replay)
{
    uint32_t bytes = 0;

    for (unsigned i = 0; i < job->n_steps; i++)
        bytes += replay ? step_operands(&job->steps[i]) * (uint32_t)sizeof(struct step_operand)
                        : step_packed_bytes(&job->steps[i]);
    return bytes;
}

static void write_steps(const struct front_device *d, const struct backend_job *job, bool replay, unsigned char *at)
{
    uint32_t handles[STEP_MAX_OPERANDS];

    for (unsigned i = 0; i < job->n_steps; i++) {
        const struct step *step = &job->steps[i];

        for (unsigned o = 0; o < step_operands(step); o++) {
            struct step_operand operand = step->operands[o];

            handles[o] = operand.memory = front_handle(d, memory_by_id(operand.memory));
            if (replay) {
                memcpy(at, &operand, sizeof(operand));
                at += sizeof(operand);
            }
        }
        if (!replay)
            at += step_pack(step, handles, at);
    }
}

/* Forecasts when the job will end. A job whose end is not known is waited for from its beginning, so the end of the
 * jobs behind it is not known either. */
static void forecast(struct front_stream *s, struct front_job *own, uint32_t program)
{
    struct front *f = s->device->front;
    struct backend_job *job = own->job;
    const uint64_t begin_ns = s->sent && s->likely_ns > own->submitted_ns ? s->likely_ns : own->submitted_ns;
    uint64_t expected_ns;

    own->kind = 0;
    if (!f->config.may_poll || job->counters)
        return;
    own->kind = forecast_key(job, program);
    expected_ns = forecast_of(&f->forecast, own->kind, job);
    job->window = wait_window_of(begin_ns, expected_ns);
    s->likely_ns = expected_ns ? begin_ns + expected_ns : 0;
}

/* Gives the job to the stream's executor. False: there is no room now. */
static bool send_job(struct front_stream *s, struct backend_job *job, uint32_t gpus)
{
    struct executor *x = s->on;
    struct record_submit record;
    struct front_job *own;
    unsigned char *at;
    uint32_t program, slot;
    bool replay;

    slot = ids_take(&x->slots);
    if (!slot)
        return false;
    program = front_program_of(s->device, x, job, &replay);
    at = ring_reserve(&x->out, (uint32_t)sizeof(record) + behind_record(job, replay));
    if (!at) {
        ids_give(&x->slots, slot);
        return false;
    }
    if (program)
        front_program_note(job, x);
    own = &x->jobs[slot];
    own->job = job;
    own->stream = s;
    own->slot = slot;
    own->gpus = gpus;
    own->serial++;
    own->told = own->begun = false;
    own->end_ns = 0;
    own->submitted_ns = clock_now_ns();
    own->first_ns = s->sent ? 0 : own->submitted_ns;
    job->impl = own;
    front_hold_sent(s, own);
    forecast(s, own, program);
    job->started_ns = own->first_ns; /* until the executor says it better */
    record = (struct record_submit){.kind = RECORD_SUBMIT,
                                    .slot = slot,
                                    .serial = own->serial,
                                    .stream = s->number,
                                    .n_steps = job->n_steps,
                                    .warmup = job->warmup,
                                    .repeat = job->repeat,
                                    .program = program,
                                    .timing = (uint8_t)job->timing,
                                    .replay = replay,
                                    .counts = job->counters != NULL,
                                    .warm = job->counters && job->counters->warm,
                                    .owner = job->owner,
                                    .token = job->token,
                                    .window = job->window};
    if (job->signal.page) {
        record.signal_page = front_handle(s->device, job->signal.page);
        record.signal_offset = job->signal.offset;
        record.signal_value = job->signal.value;
    }
    memcpy(at, &record, sizeof(record));
    write_steps(s->device, job, replay, at + sizeof(record));
    atomic_store_explicit(&x->region->ended[slot], 0, memory_order_relaxed);
    ring_publish(&x->out);
    front_ring_doorbell(x);
    front_load_add(x, own);
    s->sent++;
    return true;
}

/* ---- what goes next ---- */

/* The stream waits for the domain. Returns false. */
static bool wait_for(struct front_stream *s, struct front_domain *d)
{
    if (list_empty(&s->blocked_link))
        list_append(&d->turns[s->device->number].blocked, &s->blocked_link);
    return false;
}

void front_leave_stream(struct front_stream *s, struct backend_job *job)
{
    if (s->unsent == &job->link) {
        s->unsent = job->link.next;
        front_hold_forget(s);
    }
    if (s->prepare_job == job)
        s->refused = false;
    list_remove(&job->link);
    if (list_empty(&s->jobs))
        list_remove(&s->link);
    job->impl = NULL;
}

void front_end(struct front_stream *s, struct backend_job *job, const struct error *why)
{
    struct front *f = s->device->front;

    front_leave_stream(s, job);
    job->failed = why != NULL;
    if (why)
        job->error = *why;
    list_append(&f->failed, &job->link);
    front_tell(f);
}

static void run_prepare(struct executor *x, struct front_task *task)
{
    struct front_stream *s = list_entry(task, struct front_stream, prepare);
    struct front *f = x->front;

    s->prepared = front_open_all(s->device, s->prepare_job, x, &s->prepare_error);
    s->prepared_late = front_is_lost(x);
    pthread_mutex_lock(&f->lock);
    list_append(&f->prepared, &s->prepared_link);
    pthread_mutex_unlock(&f->lock);
    front_tell(f);
}

/* The executor's keeper opens what the stream's next job needs. False: the executor is about to end; the stream goes on
 * when it has. */
static bool prepare(struct front_stream *s, struct executor *x)
{
    struct front *f = s->device->front;

    s->prepare.run = run_prepare;
    s->end_ns = 0;
    s->prepare_job = front_job_at(s->unsent);
    pthread_mutex_lock(&f->lock);
    s->preparing = front_task_add(x, &s->prepare);
    pthread_mutex_unlock(&f->lock);
    return s->preparing;
}

/* Ends the stream's next job, once the jobs before it have ended. False: it must wait for them. */
static bool end_next(struct front_stream *s, struct backend_job *job, const struct error *why)
{
    if (s->sent)
        return false;
    front_end(s, job, why);
    return true;
}

/* Sends the stream's next job, or ends it. False: the stream waits. */
static bool advance_one(struct front_stream *s, struct backend_job *job, struct front_domain *d)
{
    struct front *f = s->device->front;
    struct executor *x;
    uint32_t gpus;
    struct error e;

    if (atomic_load_explicit(&job->cancel, memory_order_relaxed)) {
        error_set(&e, ERROR_CANCELLED, "the job was cancelled before it began");
        front_hold_forget(s);
        return end_next(s, job, &e);
    }
    if (job->failed) { /* with an executor that had it */
        e = job->error;
        return end_next(s, job, &e);
    }
    if (s->refused) {
        s->refused = !end_next(s, job, &s->prepare_error);
        return !s->refused;
    }
    if (front_domain_serve(d, f, &e) < 0)
        return end_next(s, job, &e);
    x = d->executor;
    if (s->on != x && s->sent)
        return false; /* two executors have no order: the earlier jobs end first */
    job->waits = !x || !x->ready || atomic_load(&x->gone);
    if (job->waits || !list_empty(&x->overflow))
        return wait_for(s, d);
    /* A job that is alone needs no turn. */
    if (front_hold_is_wanted(s, job) ? d->leaving_ns && !job->counters : !front_turn_take(s->device, d))
        return wait_for(s, d);
    if (!front_has_all(s->device, job, x))
        return prepare(s, x) ? false : wait_for(s, d);
    gpus = front_load_gpus(s->device, job);
    job->waits = !front_hold_take(s, job, gpus);
    if (job->waits)
        return wait_for(s, d);
    if (s->on != x)
        join(s, x);
    if (!list_empty(&x->overflow) || !send_job(s, job, gpus))
        return wait_for(s, d);
    s->unsent = s->unsent->next;
    s->beside = false;
    return true;
}

/* A stream is of the domain of its first unsent job, or else of the last one's. */
static void enter(struct front_stream *s, struct front_domain *d)
{
    if (s->domain == d)
        return;
    if (s->domain)
        s->domain->streams--;
    s->domain = d;
    if (d)
        d->streams++;
}

void front_advance(struct front_stream *s)
{
    struct error e;

    if (s->preparing || !list_empty(&s->blocked_link))
        return;
    while (s->unsent != &s->jobs) {
        struct backend_job *job = front_job_at(s->unsent);
        struct front_domain *d = s->domain;

        if (!d || d->key != job->domain) {
            pthread_mutex_lock(&s->device->front->lock);
            d = front_domain_get(s->device->front, job->domain);
            pthread_mutex_unlock(&s->device->front->lock);
        }
        if (!d) {
            error_set(&e, ERROR_OUT_OF_MEMORY, "no memory for a domain");
            if (!end_next(s, job, &e))
                return;
            continue;
        }
        enter(s, d);
        if (!advance_one(s, job, d))
            return;
    }
    if (list_empty(&s->jobs))
        enter(s, NULL);
}

void front_advance_on(struct front_domain *d, const struct front_device *gpu)
{
    struct list again, *node;

    /* Each stream gets one look; a stream that must wait on enters the list again. */
    list_take(&again, &d->turns[gpu->number].blocked);
    while ((node = list_pop(&again)))
        front_advance(list_entry(node, struct front_stream, blocked_link));
}

void front_advance_domain(const struct front *f, struct front_domain *d)
{
    for (unsigned i = 0; i < f->n_devices; i++)
        front_advance_on(d, f->devices[i]);
}

bool front_is_blocked(const struct front *f, const struct front_domain *d)
{
    for (unsigned i = 0; i < f->n_devices; i++)
        if (!list_empty(&d->turns[i].blocked))
            return true;
    return false;
}

void front_submit(struct backend_stream *stream, struct backend_job *job)
{
    struct front_stream *s = (struct front_stream *)(void *)stream;
    struct front *f = s->device->front;

    set_stream(job, s);
    if (list_empty(&s->jobs))
        list_append(&f->busy, &s->link);
    list_append(&s->jobs, &job->link);
    if (s->unsent == &s->jobs)
        s->unsent = &job->link;
    f->unfinished++;
    if (s->unsent == &job->link)
        front_advance(s);
}

void front_cancel(struct backend_job *job)
{
    struct front_job *own = front_job_of(job);
    struct front_stream *s;

    if (!job->impl) /* the job has ended: done() follows */
        return;
    s = own ? own->stream : (struct front_stream *)(void *)((char *)job->impl - 1);
    if (!own) { /* the job ends when those before it have ended */
        if (s->preparing && s->prepare_job == job && atomic_load(&job->end_now) && job->domain != DOMAIN_COMMON)
            front_end_opening(s);
        list_remove(&s->blocked_link);
        front_advance(s);
        return;
    }
    front_send_number(s->on, RECORD_CANCEL, own->slot, own->serial);
    if (atomic_load(&job->end_now) && job->domain != DOMAIN_COMMON)
        front_end_soon(s->device->front, own);
}

void front_take_back(struct front_job *own)
{
    struct front_stream *s = own->stream;
    struct executor *x = s->on;
    struct list *next;

    own->job->was_alone = own->alone;
    front_hold_took_back(own);
    set_stream(own->job, s);
    next = own->job->link.next;
    own->job = NULL;
    ids_give(&x->slots, own->slot);
    s->sent--;
    if (s->sent && next != &s->jobs) { /* the next one is the first now */
        struct backend_job *first = front_job_at(next);

        if (front_job_of(first))
            first->started_ns = front_job_of(first)->first_ns = clock_now_ns();
    }
    front_load_remove(x, own);
}

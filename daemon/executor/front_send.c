/* Streams and jobs on their way to an executor. Thread: loop. */
#include <stdlib.h>
#include <string.h>

#include "backend/memory.h"
#include "executor/front.h"
#include "util/clock.h"

/* backend_job.impl is a struct front_job while an executor has the job; else its stream's address plus one. NULL once
 * the job has ended. */
static void set_stream(struct backend_job *job, struct front_stream *s)
{
    job->impl = (char *)s + 1;
}

static struct front_stream *stream_of(const struct backend_job *job)
{
    return (struct front_stream *)(void *)((char *)job->impl - 1);
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
    list_init(&s->opened_link);
    list_init(&s->alone_link);
    *ret_stream = (struct backend_stream *)(void *)s;
    return 0;
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
    list_append(&s->jobs, &job->link);
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

/* A stream is of the domain of its next job, or else of its last one. */
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

static void set_next(struct front_stream *s, struct backend_job *job)
{
    struct front *f = s->device->front;

    if (s->next && s->next != job) /* an earlier job came back, and goes before it */
        front_hold_forget(s);
    s->next = job;
    if (list_empty(&s->link))
        list_append(&f->busy, &s->link);
}

/* The stream is no longer busy, where it has no job. */
static void settle(struct front_stream *s)
{
    if (s->sent || s->next)
        return;
    list_remove(&s->link);
    enter(s, NULL);
}

/* The stream waits for the domain. Returns false. */
static bool wait_for(struct front_stream *s, struct front_domain *d)
{
    list_append(&d->turns[s->device->number].blocked, &s->blocked_link);
    return false;
}

void front_end(const struct front_stream *s, struct backend_job *job, const struct error *why)
{
    struct front *f = s->device->front;

    job->impl = NULL;
    job->failed = why != NULL;
    if (why)
        job->error = *why;
    list_append(&f->failed, &job->link);
    front_tell(f);
}

void front_give_back(struct front_stream *s, struct backend_job *job)
{
    set_stream(job, s);
    set_next(s, job);
    s->device->front->unfinished--;
    job->again(job);
}

/* Takes the stream's next job and ends it, once the jobs before it have ended. False: it must wait for them. */
static bool end_next(struct front_stream *s, const struct error *why)
{
    struct backend_job *job = s->next;

    if (s->sent)
        return false;
    s->next = NULL;
    front_hold_forget(s);
    s->device->front->unfinished++;
    front_end(s, job, why);
    settle(s);
    return true;
}

static void run_open(struct executor *x, struct front_task *task)
{
    struct front_stream *s = list_entry(task, struct front_stream, open);
    struct front *f = x->front;

    s->opened = front_open_all(s->device, s->next, x, &s->open_error);
    s->opened_late = front_is_lost(x);
    pthread_mutex_lock(&f->lock);
    list_append(&f->opened, &s->opened_link);
    pthread_mutex_unlock(&f->lock);
    front_tell(f);
}

/* Takes the stream's next job while the executor's keeper opens the job's objects; front_take_opened() follows. False:
 * the executor is about to end. */
static bool open_for(struct front_stream *s, struct executor *x)
{
    struct front *f = s->device->front;

    s->open.run = run_open;
    s->end_ns = 0;
    pthread_mutex_lock(&f->lock);
    s->opening = front_task_add(x, &s->open);
    pthread_mutex_unlock(&f->lock);
    f->unfinished += s->opening;
    s->domain->opening += s->opening;
    return s->opening;
}

void front_take_opened(struct front *f)
{
    struct list opened, *node;

    pthread_mutex_lock(&f->lock);
    list_take(&opened, &f->opened);
    pthread_mutex_unlock(&f->lock);
    while ((node = list_pop(&opened))) {
        struct front_stream *s = list_entry(node, struct front_stream, opened_link);
        struct backend_job *job = s->next;

        s->opening = false;
        s->domain->opening--;
        if (s->opened < 0 && !s->opened_late) {
            job->failed = true;
            job->error = s->open_error;
        } else if (s->opened < 0) { /* no fault of the job's, unless it happens again and again */
            job->failed = ++job->begun_anew >= FRONT_REPEATS_MAX;
            error_set(&job->error, ERROR_DEVICE_LOST,
                      "the GPU's process ended whenever it opened what this work needs");
        }
        front_give_back(s, job);
        front_advance(s);
    }
}

/* Takes the stream's next job: sends it, has its objects opened, or ends it. False: the job waits. */
static bool take_next(struct front_stream *s, struct front_domain *d)
{
    struct front *f = s->device->front;
    struct backend_job *job = s->next;
    struct executor *x;
    uint32_t gpus;
    struct error e;

    if (front_domain_serve(d, f, &e) < 0)
        return end_next(s, &e);
    x = d->executor;
    if (s->on != x && s->sent)
        return false; /* two executors have no order: the earlier jobs end first */
    if (!x || !x->ready || front_is_lost(x) || !list_empty(&x->overflow))
        return wait_for(s, d);
    /* A job that is alone needs no turn. */
    if (front_hold_is_wanted(s, job) ? d->leaving_ns && !job->counters : !front_turn_take(s->device, d))
        return wait_for(s, d);
    if (!front_has_all(s->device, job, x))
        return open_for(s, x) || wait_for(s, d);
    gpus = front_load_gpus(s->device, job);
    if (!front_hold_take(s, job, gpus))
        return wait_for(s, d);
    if (s->on != x)
        join(s, x);
    if (!list_empty(&x->overflow) || !send_job(s, job, gpus))
        return wait_for(s, d);
    f->unfinished++;
    s->next = NULL;
    s->beside = false;
    return true;
}

bool front_submit(struct backend_stream *stream, struct backend_job *job)
{
    struct front_stream *s = (struct front_stream *)(void *)stream;
    struct front *f = s->device->front;
    struct front_domain *d = s->domain;
    struct error e;

    set_stream(job, s);
    if (s->opening || (s->next == job && !list_empty(&s->blocked_link)))
        return false; /* go_on() follows */
    list_remove(&s->blocked_link);
    set_next(s, job);
    if (!d || d->key != job->domain) {
        pthread_mutex_lock(&f->lock);
        d = front_domain_get(f, job->domain);
        pthread_mutex_unlock(&f->lock);
    }
    if (!d) {
        error_set(&e, ERROR_OUT_OF_MEMORY, "no memory for a domain");
        return end_next(s, &e);
    }
    enter(s, d);
    return take_next(s, d);
}

void front_withdraw(struct backend_job *job)
{
    struct front_stream *s = stream_of(job);

    job->impl = NULL;
    if (s->next != job)
        return;
    s->next = NULL;
    list_remove(&s->blocked_link);
    front_hold_forget(s);
    settle(s);
}

void front_advance(struct front_stream *s)
{
    if (s->next && !s->opening)
        s->next->go_on(s->next);
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

void front_cancel(struct backend_job *job)
{
    struct front_job *own = front_job_of(job);

    if (!job->impl) /* the job has ended: done() follows */
        return;
    if (own)
        front_send_number(own->stream->on, RECORD_CANCEL, own->slot, own->serial);
    if (!atomic_load(&job->end_now) || job->domain == DOMAIN_COMMON)
        return;
    if (own)
        front_end_soon(own->stream->device->front, own);
    else
        front_end_opening(stream_of(job));
}

void front_take_back(struct front_job *own)
{
    struct front_stream *s = own->stream;
    struct executor *x = s->on;

    own->job->was_alone = own->alone;
    front_hold_took_back(own);
    list_remove(&own->job->link);
    own->job->impl = NULL;
    own->job = NULL;
    ids_give(&x->slots, own->slot);
    s->sent--;
    if (s->sent) { /* the next one is the first now */
        struct front_job *first = front_first_of(s);

        first->job->started_ns = first->first_ns = clock_now_ns();
    }
    front_load_remove(x, own);
    settle(s);
}

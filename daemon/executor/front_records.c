/* Checks and takes what an executor writes. Thread: loop. */
#include <math.h>
#include <string.h>

#include "executor/front.h"
#include "util/clock.h"

/* ---- times that an executor tells, checked against the daemon's own clock. What cannot be is not taken ---- */

static bool is_time(double us)
{
    return us >= 0 && us < 1e15; /* also false for a NaN */
}

static bool is_copy_time(double us)
{
    return isnan(us) || is_time(us);
}

/* Executions of a job follow each other, so together they took no longer than this process waited for their end. The
 * slack is for the clock of the device, and for the launch that is added to each execution. */
static bool can_be(double us, double wall_us)
{
    enum { SLACK_US = 1000, SLACK_PART = 16 };

    return us <= wall_us + wall_us / SLACK_PART + SLACK_US;
}

/* Checks the samples of a job that has ended: those that are no times become 0. Sets its wall_us. False: together they
 * are longer than the executor had the job. */
static bool accept_samples(const struct front_job *own)
{
    struct backend_job *job = own->job;
    double us = 0;

    for (uint32_t i = 0; i < job->n_samples; i++) {
        if (!is_time(job->samples[i]))
            job->samples[i] = 0;
        us += job->samples[i];
    }
    job->wall_us = clock_us_between(own->submitted_ns, clock_now_ns());
    return can_be(us, job->wall_us);
}

/* Forgets a span that cannot be: no job is on the device before it was given, or ends later than now. The clocks of
 * GPUs are known within microseconds. */
static void accept_span(uint64_t from_ns, uint64_t *begin_ns, uint64_t *end_ns)
{
    enum { FUZZ_NS = 5000 };
    const uint64_t now_ns = clock_now_ns();

    if (!from_ns || *begin_ns < from_ns - FUZZ_NS || *end_ns < *begin_ns || *end_ns > now_ns + FUZZ_NS) {
        *begin_ns = *end_ns = 0;
        return;
    }
    if (*begin_ns < from_ns)
        *begin_ns = from_ns;
    if (*end_ns > now_ns)
        *end_ns = now_ns;
}

static void accept_times(struct executor *x, const struct front_job *own, const struct record_done *record)
{
    struct backend_job *job = own->job;
    const uint64_t said_ns = record->started_ns, now_ns = said_ns ? clock_now_ns() : 0;

    /* A job cannot have started before it was submitted, nor later than now. */
    job->started_ns = said_ns > now_ns ? now_ns : said_ns;
    if (said_ns && said_ns < own->submitted_ns)
        job->started_ns = own->submitted_ns;
    job->gpu_begin_ns = record->gpu_begin_ns;
    job->gpu_end_ns = record->gpu_end_ns;
    accept_span(job->started_ns, &job->gpu_begin_ns, &job->gpu_end_ns);
    /* A time is taken once, of a job that the executor had. */
    job->timed_later = record->timed_later && job->timing == TIMING_STATISTIC && job->token && !job->n_samples;
    if (job->timed_later)
        x->expected[job->token % FRONT_EXPECTED_MAX] =
            (struct front_expected){.token = job->token, .started_ns = own->submitted_ns};
    job->h2d_us = record->h2d_us;
    job->d2h_us = record->d2h_us;
}

/* Tells the host of a time that comes after its job's end, unless it was not expected. */
static void take_time(struct executor *x, const struct record_timed *record)
{
    struct front_expected *expected = &x->expected[record->token % FRONT_EXPECTED_MAX];
    struct backend_times times = record->times;
    const struct front *f = x->front;

    if (!record->token || expected->token != record->token || !is_time(times.us) ||
        !can_be(times.us, clock_us_between(expected->started_ns, clock_now_ns())))
        return; /* forgotten meanwhile, or made up */
    expected->token = 0;
    accept_span(expected->started_ns, &times.begin_ns, &times.end_ns);
    if (f->host.timed)
        f->host.timed(f->host.context, record->token, &times);
}

/* ---- records from the executor ---- */

void front_break_off(struct executor *x, const char *what)
{
    struct error e;

    x->nonsense = true;
    error_set(&e, ERROR_DEVICE_LOST, "the executor of the GPU answered nonsense (%s)", what);
    front_kill(x, &e);
}

/* Copies a record about a job, which begins with struct record_job, and finds the job; NULL: nonsense. */
static struct front_job *read_record(struct executor *x, const unsigned char *from, uint32_t size, void *record,
                                     uint32_t record_size)
{
    struct record_job head;
    struct front_job *own = NULL;

    if (size >= record_size) {
        memcpy(record, from, record_size);
        memcpy(&head, record, sizeof(head));
        own = head.slot && head.slot <= EXECUTOR_JOBS_MAX ? &x->jobs[head.slot] : NULL;
        own = own && own->job && own->serial == head.serial ? own : NULL;
    }
    if (!own)
        front_break_off(x, "no such job");
    return own;
}

static void take_samples(struct executor *x, const unsigned char *from, uint32_t size)
{
    struct record_samples record;
    struct front_job *own = read_record(x, from, size, &record, sizeof(record));
    struct backend_job *job;

    if (!own)
        return;
    job = own->job;
    if (!record.n || record.n > RECORD_SAMPLES_MAX || size < sizeof(record) + record.n * sizeof(double) ||
        record.n > job->repeat - job->n_samples) {
        front_break_off(x, "samples");
        return;
    }
    memcpy(job->samples + job->n_samples, from + sizeof(record), record.n * sizeof(double));
    job->n_samples += record.n;
}

/* A job that counted and has not failed has its counters at the record's end; other jobs have none. */
static bool take_counters(const struct front_device *d, struct backend_job *job, const struct record_done *record,
                          const unsigned char *from, uint32_t size)
{
    uint32_t own = d->base.info.shared;

    if (!record->counted)
        return !job->counters || record->failed;
    if (!job->counters || size < sizeof(*job->counters))
        return false;
    memcpy(job->counters, from, sizeof(*job->counters));
    counters_accept(job->counters);
    /* Executors and the server of MPS are no other processes that have the device. */
    list_each (struct executor, x, link, &d->front->executors)
        own += atomic_load(&x->active) >> d->number & 1;
    job->counters->others -= own < job->counters->others ? own : job->counters->others;
    return true;
}

static bool take_rest(const struct front_device *d, struct backend_job *job, const struct record_done *record,
                      const unsigned char *from, uint32_t size)
{
    const uint32_t error_bytes = record->failed ? sizeof(job->error) : 0;
    const uint64_t variants_end = error_bytes + (uint64_t)record->n_variants * STEP_VARIANT_BYTES;

    if (record->n_variants > job->n_steps || size < variants_end)
        return false;
    if (record->failed) {
        memcpy(&job->error, from, sizeof(job->error));
        error_accept(&job->error);
    }
    for (uint32_t i = 0; i < record->n_variants; i++) {
        char name[STEP_VARIANT_BYTES];

        memcpy(name, from + error_bytes + i * (uint32_t)STEP_VARIANT_BYTES, sizeof(name));
        name[sizeof(name) - 1] = '\0';
        for (char *c = name; *c; c++)
            if (*c < ' ' || *c > '~')
                *c = '?';
        step_copy_variant(job->steps[i].variant_used, name);
    }
    return take_counters(d, job, record, from + variants_end, (uint32_t)(size - variants_end));
}

static void end_job(struct front_job *own)
{
    struct front_stream *s = own->stream;
    struct backend_job *job = own->job;
    struct front *f = s->device->front;

    s->on->useful = true;
    front_take_back(own);
    if (f->wants_room && !s->sent && job->domain != DOMAIN_COMMON)
        front_tell(f);
    f->unfinished--;
    job->done(job);
}

static void take_done(struct executor *x, const unsigned char *from, uint32_t size)
{
    struct record_done record;
    struct front_job *own = read_record(x, from, size, &record, sizeof(record));
    const struct front_job *first;
    struct backend_job *job;
    bool lost;

    if (!own)
        return;
    job = own->job;
    if (record.has_sample && job->n_samples < job->repeat)
        job->samples[job->n_samples++] = record.sample;
    if (record.n_samples != job->n_samples || !is_copy_time(record.h2d_us) || !is_copy_time(record.d2h_us) ||
        !take_rest(own->stream->device, job, &record, from + sizeof(record), size - (uint32_t)sizeof(record))) {
        front_break_off(x, "an end");
        return;
    }
    lost = record.failed && job->error.code == ERROR_DEVICE_LOST;
    first = front_first_of(own->stream);
    if (first != own && !(lost && first && first->told)) {
        front_break_off(x, "an end out of order");
        return;
    }
    if (!accept_samples(own) && !lost) {
        front_break_off(x, "times longer than it had the job");
        return;
    }
    if (lost) {
        own->told = true; /* the executor is about to be lost: see front_recover.c */
        own->begun = record.started_ns != 0;
        return;
    }
    job->failed = record.failed != 0;
    job->ended = record.ended;
    job->timer = record.timer < TIMER_KINDS ? (enum backend_timer)record.timer : TIMER_EVENTS;
    accept_times(x, own, &record);
    if (own->kind && own->first_ns && !job->failed && !record.prepared) {
        if (record.overslept)
            forecast_learn_less(&x->front->forecast, own->kind);
        else
            forecast_learn(&x->front->forecast, own->kind, job, clock_now_ns() - own->first_ns);
    }
    end_job(own);
}

static void take_timed(struct executor *x, const unsigned char *from, uint32_t size)
{
    struct record_timed record;

    if (size < sizeof(record)) {
        front_break_off(x, "a time");
        return;
    }
    memcpy(&record, from, sizeof(record));
    take_time(x, &record);
}

static void take_record(struct executor *x, const unsigned char *from, uint32_t size)
{
    uint32_t kind = UINT32_MAX;
    struct error e;

    if (size >= sizeof(kind))
        memcpy(&kind, from, sizeof(kind));
    if (kind == RECORD_SAMPLES) {
        take_samples(x, from, size);
    } else if (kind == RECORD_DONE) {
        take_done(x, from, size);
    } else if (kind == RECORD_TIMED) {
        take_timed(x, from, size);
    } else if (kind == RECORD_LOST) {
        error_set(&e, ERROR_DEVICE_LOST, "the GPU's context is broken");
        x->broke = true;
        front_kill(x, &e);
    } else {
        front_break_off(x, "a record");
    }
}

/* Takes records, as many as a ring holds at most: an executor that writes as fast as the daemon reads gets no more of
 * the loop's time. */
void front_take_records(struct executor *x)
{
    const uint64_t begin = x->in.position;
    const void *record;
    uint32_t size;

    while (x->ready && !x->nonsense && x->in.position - begin < RING_BYTES && (record = ring_peek(&x->in, &size))) {
        take_record(x, record, size);
        ring_next(&x->in);
        x->stretched = x->rings = 0;
    }
    if (x->in.corrupt)
        front_break_off(x, "the ring");
}

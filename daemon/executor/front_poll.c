/* Checks and takes what an executor writes; has the backend's poll() and arm(). Thread: loop. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

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

static void break_off(struct executor *x, const char *what)
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
        break_off(x, "no such job");
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
        break_off(x, "samples");
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
        break_off(x, "an end");
        return;
    }
    lost = record.failed && job->error.code == ERROR_DEVICE_LOST;
    first = front_first_of(own->stream);
    if (first != own && !(lost && first && first->told)) {
        break_off(x, "an end out of order");
        return;
    }
    if (!accept_samples(own) && !lost) {
        break_off(x, "times longer than it had the job");
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
        break_off(x, "a time");
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
        break_off(x, "a record");
    }
}

/* ---- the loop's entries ---- */

/* Copies how far the oldest job of each stream is, so that the watchdog sees whether it goes on. */
static void note_progress(struct front *f)
{
    list_each (struct front_stream, s, link, &f->busy) {
        const struct front_job *own = front_first_of(s);
        const unsigned ended = own ? atomic_load_explicit(&s->on->region->ended[own->slot], memory_order_relaxed) : 0;

        /* The number only grows, up to the executions that there are: else a job that hangs could look alive for ever.
         */
        if (own && ended > own->job->ended && ended <= own->job->warmup + own->job->repeat)
            own->job->ended = ended;
    }
}

/* Takes records, as many as a ring holds at most: an executor that writes as fast as the daemon reads gets no more of
 * the loop's time. */
static void take_records(struct executor *x)
{
    const uint64_t begin = x->in.position;
    const void *record;
    uint32_t size;

    while (!x->nonsense && x->in.position - begin < RING_BYTES && (record = ring_peek(&x->in, &size))) {
        take_record(x, record, size);
        ring_next(&x->in);
        x->stretched = x->rings = 0;
    }
    if (x->in.corrupt)
        break_off(x, "the ring");
}

void front_take_rest(struct executor *x)
{
    if (x->ready)
        take_records(x);
}

/* Advances streams whose domain has its turn on their GPU; front_turns_turn() advances the others. */
static void advance_blocked(const struct executor *x)
{
    const struct front *f = x->front;

    for (unsigned i = 0; x->domain && i < f->n_devices; i++) {
        const struct front_turn *turn = &x->domain->turns[i];

        if (!list_empty(&turn->blocked) && (x->common || turn->has))
            front_advance_on(x->domain, f->devices[i]);
    }
}

static void poll_executor(struct executor *x, struct backend_device *device)
{
    enum { POLLS_STRETCHED = 1000 };

    take_records(x);
    if (x->unfinished && atomic_load_explicit(&x->region->issuing, memory_order_relaxed) &&
        x->stretched++ < POLLS_STRETCHED)
        device->active = true;
    if (!list_empty(&x->overflow)) {
        front_send_overflow(x);
        if (list_empty(&x->overflow) && x->domain) /* also streams that have not asked for a turn yet */
            front_advance_domain(x->front, x->domain);
    }
    advance_blocked(x);
}

static void look_after(struct front *f)
{
    enum { AT_ONCE = 16, RINGS_MAX = 10000 };
    struct epoll_event events[AT_ONCE];
    const int n = epoll_wait(f->watch, events, AT_ONCE, 0);

    for (int i = 0; i < n; i++) {
        struct executor *x = events[i].data.ptr; /* NULL: the timer */

        if (x)
            front_check(x);
        if (x && ++x->rings == RINGS_MAX && !atomic_load(&x->gone))
            break_off(x, "rings for nothing");
    }
    note_progress(f);
    if (!f->slept)
        return;
    f->slept = false;
    list_each (struct executor, x, link, &f->executors)
        if (x->ready)
            atomic_store(&x->region->daemon_sleeps, 0);
}

/* Whether the timer is due. Disarms it then: its descriptor would stay readable, and the loop would never sleep. */
static bool read_timer(struct front *f)
{
    const struct itimerspec never = {.it_value = {.tv_sec = 0}};
    uint64_t times;

    if (f->timer_ns == UINT64_MAX || clock_now_ns() < f->timer_ns)
        return false;
    f->timer_ns = UINT64_MAX;
    timerfd_settime(f->timer, 0, &never, NULL);
    return read(f->timer, &times, sizeof(times)) > 0 || errno == EAGAIN;
}

static void turn(struct front *f)
{
    const bool due = read_timer(f);
    struct list failed, *node;

    if (atomic_exchange(&f->news, false) || due) {
        list_each (struct executor, x, link, &f->executors)
            if (atomic_load(&x->broken)) /* a thread tells of a call that failed on its way */
                front_check(x);
        front_take_opened(f);
        front_domains_turn(f);
        front_work_done(f);
    }
    front_hold_turn(f);
    front_turns_turn(f);
    front_deadlines_turn(f);
    /* Set before jobs end: their errors say whether the daemon goes on. */
    if (f->lost.code != ERROR_NONE)
        for (unsigned i = 0; i < f->n_devices; i++)
            f->devices[i]->base.lost = true;
    list_take(&failed, &f->failed);
    while ((node = list_pop(&failed))) {
        f->unfinished--;
        front_job_at(node)->done(front_job_at(node));
    }
}

unsigned front_poll(struct backend_device *device)
{
    enum { POLLS_A_LOOK = 4096 };
    struct front *f = front_device(device)->front;

    if (f->slept || !f->unfinished || ++f->polls % POLLS_A_LOOK == 0)
        look_after(f);
    list_each (struct executor, x, link, &f->executors) {
        if (x->ready && !atomic_load_explicit(&x->gone, memory_order_relaxed))
            poll_executor(x, device);
    }
    if (atomic_load_explicit(&f->news, memory_order_relaxed) || f->timer_ns != UINT64_MAX || !list_empty(&f->failed))
        turn(f);
    return f->unfinished;
}

enum { STREAMS_LOOKED_AT = 16 }; /* streams to check for jobs that end soon: bounded, so that a look is short */

static const struct wait_window *first_window(const struct front_stream *s)
{
    return s->sent ? &front_job_at(list_first(&s->jobs))->window : NULL;
}

bool front_ends_soon(const struct backend_device *device, uint64_t now_ns)
{
    const struct front *f = ((const struct front_device *)(const void *)device)->front;
    unsigned n = 0;

    list_each (struct front_stream, s, link, &f->busy) {
        const struct wait_window *w = first_window(s);

        if (w && wait_is_known(w) && wait_polls(w, now_ns))
            return true;
        if (++n == STREAMS_LOOKED_AT)
            break;
    }
    return false;
}

static void arm_for_windows(struct front *f)
{
    const uint64_t now_ns = clock_now_ns();
    uint64_t next_ns = UINT64_MAX;
    unsigned n = 0;

    list_each (struct front_stream, s, link, &f->busy) {
        const struct wait_window *w = first_window(s);

        if (w && wait_sleeps_first(w, now_ns) && wait_sleep_end(w, now_ns) < next_ns)
            next_ns = wait_sleep_end(w, now_ns);
        if (++n == STREAMS_LOOKED_AT)
            break;
    }
    front_set_timer(f, next_ns);
}

void front_arm(struct backend_device *device)
{
    struct front *f = front_device(device)->front;
    bool more = atomic_load(&f->news);

    f->slept = true;
    list_each (struct executor, x, link, &f->executors) {
        if (!x->ready || atomic_load_explicit(&x->gone, memory_order_relaxed))
            continue;
        atomic_store(&x->region->wants_room,
                     !list_empty(&x->overflow) || (x->domain && front_is_blocked(f, x->domain)));
        atomic_store(&x->region->daemon_sleeps, 1);
        /* The executor stores its words before it looks at these words. Something may have come since the last look. */
        atomic_thread_fence(memory_order_seq_cst);
        more = ring_has_record(&x->in) || (atomic_load(&x->region->wants_room) && ring_read_on(&x->out)) ||
               (atomic_load(&x->broken) && !x->broken_ns) || more;
    }
    if (more)
        f->host.wake(f->host.context);
    else if (f->config.may_poll)
        arm_for_windows(f);
}

/* ---- two ways to have the loop look at the front: now, from any thread, and at a time ---- */

void front_tell(struct front *f)
{
    atomic_store(&f->news, true);
    f->host.wake(f->host.context);
}

void front_set_timer(struct front *f, uint64_t at_ns)
{
    const struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(at_ns / 1000000000), .tv_nsec = (long)(at_ns % 1000000000)}};

    if (at_ns >= f->timer_ns)
        return;
    f->timer_ns = at_ns;
    timerfd_settime(f->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

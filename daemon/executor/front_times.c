/* Checks the times that an executor tells against the daemon's own clock. */
#include "executor/front_times.h"

#include <math.h>

#include "util/clock.h"

static bool is_time(double us)
{
    return us >= 0 && us < 1e15; /* also false for a NaN */
}

bool front_is_copy_time(double us)
{
    return isnan(us) || is_time(us);
}

/* Executions of a job follow each other, so together they took no longer than this process waited for their end. What
 * is forgiven: the clock of the device, and what is added to each execution for its launch. */
static bool can_be(double us, double wall_us)
{
    enum { SLACK_US = 1000, SLACK_PART = 16 };

    return us <= wall_us + wall_us / SLACK_PART + SLACK_US;
}

bool front_accept_samples(const struct front_job *own)
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

/* The job cannot have started before it was submitted, nor later than now. */
static uint64_t started_of(const struct front_job *own, uint64_t said_ns)
{
    uint64_t now_ns;

    if (!said_ns)
        return 0;
    now_ns = clock_now_ns();
    return said_ns < own->submitted_ns ? own->submitted_ns : said_ns > now_ns ? now_ns : said_ns;
}

/* Forgets a span that cannot be: nothing is on the device before it was given, or ends later than now. The clocks of
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

/* A time is taken once, of a job that the executor had. */
static void expect_time(struct executor *x, const struct front_job *own, bool later)
{
    struct backend_job *job = own->job;

    job->timed_later = later && job->timing == TIMING_STATISTIC && job->token && !job->n_samples;
    if (job->timed_later)
        x->expected[job->token % FRONT_EXPECTED_MAX] =
            (struct front_expected){.token = job->token, .started_ns = own->submitted_ns};
}

void front_accept_times(struct executor *x, const struct front_job *own, const struct record_done *record)
{
    struct backend_job *job = own->job;

    job->started_ns = started_of(own, record->started_ns);
    job->gpu_begin_ns = record->gpu_begin_ns;
    job->gpu_end_ns = record->gpu_end_ns;
    accept_span(job->started_ns, &job->gpu_begin_ns, &job->gpu_end_ns);
    expect_time(x, own, record->timed_later != 0);
    job->h2d_us = record->h2d_us;
    job->d2h_us = record->d2h_us;
}

void front_take_time(struct executor *x, const struct record_timed *record)
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

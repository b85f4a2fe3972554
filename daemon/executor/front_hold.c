/* Holds: while one executor reads the GPU's counters, no job is sent to another one, since what others do on the GPU is
 * counted, too. Jobs that executors have end first. Thread: loop. */
#include <stdlib.h>

#include "executor/executor.h"
#include "executor/front_policy.h"
#include "executor/privilege.h"
#include "util/clock.h"

#define QUIET_NS                                                                                                       \
    UINT64_C(2000000000) /* how long a hold waits for the jobs of others; then it is given up for a while */
#define COUNTING_NS UINT64_C(5000000000) /* how long others wait at most while it counts */

static bool is_quiet(const struct front *f)
{
    list_for_each_safe (node, after, &f->executors) {
        const struct executor *x = list_entry(node, struct executor, link);

        if (x->unfinished)
            return false;
    }
    return true;
}

/* The others go on. For as long as they waited no one holds them again; where none waited, the next one may at once. */
static void release(struct front *f)
{
    const uint64_t now_ns = clock_now_ns();

    if (f->hold_kept_ns)
        f->hold_again_ns = now_ns + (now_ns - f->hold_kept_ns);
    f->hold_kept_ns = 0;
    f->holder = NULL;
    f->hold_ended = true;
    front_tell(f);
}

bool front_hold_take(struct front *f, const struct front_domain *d, const struct backend_job *job)
{
    const uint64_t now_ns = f->holder || job->counters ? clock_now_ns() : 0;

    if (!job->counters) {
        if (f->holder && !f->hold_kept_ns)
            f->hold_kept_ns = now_ns;
        return !f->holder;
    }
    if (f->holder && f->holder != d->executor)
        return false;
    if (!f->holder) {
        if (now_ns < f->hold_again_ns) {
            front_set_timer(f, f->hold_again_ns);
            f->hold_wanted = true;
            return false;
        }
        f->holder = d->executor;
        f->hold_key = d->key;
        f->hold_since_ns = now_ns;
        f->counting = false;
        front_set_timer(f, now_ns + QUIET_NS);
    }
    if (!is_quiet(f))
        return false;
    f->counting = true;
    f->hold_since_ns = now_ns;
    front_set_timer(f, now_ns + COUNTING_NS);
    return true;
}

static void advance_all(struct front *f)
{
    f->hold_ended = f->hold_wanted = false;
    list_for_each_safe (node, after, &f->domains) {
        front_advance_domain(list_entry(node, struct front_domain, link));
    }
}

/* One that may read counters by a privilege is beside no work of others as long as it lives. */
static bool ends_after(const struct executor *x)
{
    return x->counts >= 0;
}

/* Whether the holder has ended, or has lost its domain. */
static bool is_gone(const struct front *f)
{
    list_for_each_safe (node, after, &f->executors) {
        const struct executor *x = list_entry(node, struct executor, link);

        if (x == f->holder)
            return !ends_after(x) && (!x->domain || x->key != f->hold_key || atomic_load(&x->gone));
    }
    return true;
}

/* Nothing is left to hold for, or it took too long. */
static bool is_over(const struct front *f, uint64_t now_ns)
{
    if (is_gone(f))
        return true;
    if (ends_after(f->holder) && (f->counting || !f->holder->domain))
        return false;
    if (f->counting)
        return !f->holder->unfinished;
    /* Without a stream that waits, the job was cancelled. */
    return list_empty(&f->holder->domain->blocked) || now_ns >= f->hold_since_ns + QUIET_NS;
}

void front_hold_turn(struct front *f)
{
    const uint64_t now_ns = f->holder || f->hold_ended || f->hold_wanted ? clock_now_ns() : 0;

    if (f->holder && is_over(f, now_ns)) {
        release(f);
    } else if (f->holder && f->counting && ends_after(f->holder) && !f->holder->unfinished) {
        if (f->holder->domain)
            front_executor_dismiss(f->holder);
    } else if (f->holder && f->counting) {
        front_end_late(f->holder, f->hold_since_ns, COUNTING_NS);
        front_set_timer(f, now_ns + COUNTING_NS / 8);
    } else if (f->holder) {
        front_set_timer(f, f->hold_since_ns + QUIET_NS);
        if (f->holder->domain)
            front_advance_domain(f->holder->domain);
    }
    if (f->hold_wanted && now_ns < f->hold_again_ns)
        front_set_timer(f, f->hold_again_ns);
    if (!f->holder && (f->hold_ended || (f->hold_wanted && now_ns >= f->hold_again_ns)))
        advance_all(f);
}

void front_hold_end(const struct executor *x)
{
    if (x->front->holder == x)
        release(x->front);
}

/* ---- counters by a privilege ---- */

/* The device of the domain's next job; -1: it has none. */
static int device_of_next(const struct front *f, const struct front_domain *d)
{
    list_for_each_safe (node, after, &f->busy) {
        const struct front_stream *s = list_entry(node, struct front_stream, link);

        if (s->domain == d && s->unsent != &s->jobs)
            return (int)s->device->number;
    }
    return -1;
}

int front_privilege_device(const struct front *f, const struct front_domain *d)
{
    const char *parameters = getenv("KOPS_STANDIN_PARAMETERS"); /* of a driver for tests */

    if (!domain_is_profiling(d->key) || !f->config.executors_counters_privileged ||
        f->config.executors_sandbox == EXECUTOR_SANDBOX_OFF ||
        !privilege_is_needed(parameters ? parameters : PRIVILEGE_PARAMETERS))
        return -1;
    return device_of_next(f, d);
}

bool front_privilege_is_spent(const struct front *f, const struct front_domain *d)
{
    const struct executor *x = d->executor;

    return x->counts >= 0 && !x->unfinished && (x->in_a_row || x->counts != device_of_next(f, d));
}

bool front_privilege_is_free(const struct front *f)
{
    list_for_each_safe (node, after, &f->executors) {
        if (list_entry(node, struct executor, link)->counts >= 0)
            return false;
    }
    return true;
}

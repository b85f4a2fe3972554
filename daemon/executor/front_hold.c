/* Holds: while one executor reads the GPU's counters, or has an exclusive job, no job is sent to another one, since
 * what others do on the GPU is counted, or disturbs it. Jobs that executors have end first. Thread: loop. */
#include <stdlib.h>

#include "executor/executor.h"
#include "executor/front_policy.h"
#include "executor/privilege.h"
#include "util/clock.h"

enum { DEFAULT_EXCLUSIVE_MS = 50 };

#define QUIET_NS                                                                                                       \
    UINT64_C(2000000000) /* how long a hold waits for the jobs of others; then it is given up for a while */
#define COUNTING_NS UINT64_C(5000000000) /* how long others wait at most while it counts */

/* How long jobs of other users wait at most for an exclusive one, from when the first of them could go on. */
static uint64_t exclusive_ns(const struct front *f)
{
    const unsigned ms = f->config.executors_exclusive_ms;

    return (ms ? ms : DEFAULT_EXCLUSIVE_MS) * UINT64_C(1000000);
}

static bool is_quiet(const struct front *f)
{
    list_for_each_safe (node, after, &f->executors) {
        const struct executor *x = list_entry(node, struct executor, link);

        if (x->unfinished)
            return false;
    }
    return true;
}

/* The job goes on, if it runs yet, and others beside it. */
static void end_alone(struct front *f, uint64_t now_ns)
{
    struct front_stream *s = f->hold_stream;
    struct front_job *own =
        s && s->sent ? front_job_of(list_entry(list_first(&s->jobs), struct backend_job, link)) : NULL;

    if (!own || !f->counting)
        return;
    own->alone = false;
    s->on->outlasts_ns = now_ns;
    f->hold_outlasted = true;
    front_set_timer(f, now_ns);
}

/* Whether another executor has work, or had some just now. */
static bool has_others(const struct front *f, const struct executor *x, uint64_t now_ns)
{
    list_for_each_safe (node, after, &f->executors) {
        const struct executor *other = list_entry(node, struct executor, link);

        if (other != x && (other->unfinished || now_ns < other->used_ns + FRONT_LONGEST_NS / 4))
            return true;
    }
    return false;
}

/* Exclusive jobs that outlast their hold last no longer beside others than jobs may while somebody waits. */
static void end_outlasting(struct front *f, uint64_t now_ns)
{
    f->hold_outlasted = false;
    list_for_each_safe (node, after, &f->executors) {
        struct executor *x = list_entry(node, struct executor, link);

        if (!x->outlasts_ns)
            continue;
        if (!x->unfinished) {
            x->outlasts_ns = 0;
            continue;
        }
        if (!has_others(f, x, now_ns))
            x->outlasts_ns = now_ns;
        else if (!x->common)
            front_end_late(x, x->outlasts_ns, FRONT_LONGEST_NS);
        f->hold_outlasted = true;
        front_set_timer(f, now_ns + FRONT_LONGEST_NS / 8);
    }
}

/* The others go on. For as long as they waited no one holds them again; where none waited, the next one may at once. */
static void release(struct front *f)
{
    const uint64_t now_ns = clock_now_ns();

    if (f->hold_kept_ns)
        f->hold_again_ns = now_ns + (now_ns - f->hold_kept_ns);
    end_alone(f, now_ns);
    f->hold_kept_ns = f->hold_asked_ns = 0;
    f->holder = NULL;
    f->hold_stream = NULL;
    f->hold_ended = true;
    front_tell(f);
}

bool front_hold_is_wanted(const struct front_stream *s, const struct backend_job *job)
{
    return job->counters || (job->exclusive && !s->beside);
}

/* Jobs of its own user in its own executor bound no exclusive one. */
static bool is_of_another(const struct front *f, const struct front_stream *s, const struct backend_job *job)
{
    return job->owner != f->hold_owner || s->domain->key != f->hold_key;
}

/* A job waits for the end of a hold. */
static void note_waiting(struct front *f, const struct front_stream *s, const struct backend_job *job,
                         uint64_t *since_ns, uint64_t now_ns)
{
    if (*since_ns || (f->hold_exclusive && !is_of_another(f, s, job)))
        return;
    *since_ns = now_ns;
    if (f->hold_exclusive)
        front_set_timer(f, now_ns + exclusive_ns(f) / 2);
}

/* Nobody holds: the stream does, if it may now. */
static bool begin(struct front *f, struct front_stream *s, const struct backend_job *job, uint64_t now_ns)
{
    if (!job->counters && !front_alone_is_next(f, s))
        return false;
    if (now_ns < f->hold_again_ns) {
        front_set_timer(f, f->hold_again_ns);
        f->hold_wanted = true;
        return false;
    }
    f->holder = s->domain->executor;
    f->hold_key = s->domain->key;
    f->hold_stream = s;
    f->hold_owner = job->owner;
    f->hold_exclusive = !job->counters;
    f->hold_since_ns = now_ns;
    f->counting = false;
    front_set_timer(f, now_ns + QUIET_NS);
    return true;
}

bool front_hold_take(struct front *f, struct front_stream *s, const struct backend_job *job)
{
    const bool wanted = front_hold_is_wanted(s, job);
    const uint64_t now_ns = f->holder || wanted ? clock_now_ns() : 0;

    if (!wanted) {
        if (f->holder)
            note_waiting(f, s, job, &f->hold_kept_ns, now_ns);
        return !f->holder;
    }
    if (!job->counters)
        front_alone_wait(s, now_ns);
    if (f->holder && f->hold_stream != s) {
        note_waiting(f, s, job, &f->hold_asked_ns, now_ns);
        return false;
    }
    if ((!f->holder && !begin(f, s, job, now_ns)) || !is_quiet(f))
        return false;
    f->counting = true;
    f->hold_since_ns = now_ns;
    if (f->hold_exclusive) {
        front_alone_note(f, job->owner, now_ns);
        front_alone_leave(s);
    } else {
        front_set_timer(f, now_ns + COUNTING_NS);
    }
    return true;
}

void front_hold_sent(const struct front_stream *s, struct front_job *own)
{
    const struct front *f = s->device->front;

    own->alone = own->job->exclusive && f->hold_stream == s && f->counting;
}

void front_hold_forget(struct front_stream *s)
{
    struct front *f = s->device->front;

    s->beside = false;
    if (!list_empty(&s->alone_link)) {
        front_alone_leave(s);
        f->hold_ended = true; /* it may have been the next one */
        front_tell(f);
    }
    if (f->hold_stream != s || f->counting)
        return;
    f->hold_stream = NULL;
    front_tell(f);
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

/* Since when others wait for an exclusive job; UINT64_MAX: none does. */
static uint64_t waiting_since(const struct front *f)
{
    const uint64_t kept_ns = f->hold_kept_ns ? f->hold_kept_ns : UINT64_MAX;
    const uint64_t asked_ns = f->hold_asked_ns ? f->hold_asked_ns : UINT64_MAX;

    return kept_ns < asked_ns ? kept_ns : asked_ns;
}

/* When an exclusive job has no hold any more. Half of the time that others may wait is for those jobs that had begun.
 */
static uint64_t exclusive_until(const struct front *f)
{
    const uint64_t since_ns = waiting_since(f), longest_ns = f->counting ? exclusive_ns(f) : exclusive_ns(f) / 2;
    const uint64_t bound_ns = since_ns == UINT64_MAX ? UINT64_MAX : since_ns + longest_ns;

    return !f->counting && f->hold_since_ns + QUIET_NS < bound_ns ? f->hold_since_ns + QUIET_NS : bound_ns;
}

/* Nothing is left to hold for, or it took too long. */
static bool is_over(const struct front *f, uint64_t now_ns)
{
    if (is_gone(f))
        return true;
    if (f->hold_exclusive)
        return (f->counting ? !f->holder->unfinished : !f->hold_stream) || now_ns >= exclusive_until(f);
    if (ends_after(f->holder) && (f->counting || !f->holder->domain))
        return false;
    if (f->counting)
        return !f->holder->unfinished;
    /* Without a stream that waits, the job was cancelled. */
    return list_empty(&f->holder->domain->blocked) || now_ns >= f->hold_since_ns + QUIET_NS;
}

void front_hold_turn(struct front *f)
{
    const bool any = f->holder || f->hold_ended || f->hold_wanted || f->hold_outlasted || !list_empty(&f->alone);
    const uint64_t now_ns = any ? clock_now_ns() : 0;

    if (any && front_alone_turn(f, now_ns))
        f->hold_ended = true;
    if (f->hold_outlasted)
        end_outlasting(f, now_ns);
    if (f->holder && is_over(f, now_ns)) {
        release(f);
    } else if (f->holder && f->hold_exclusive) {
        if (exclusive_until(f) != UINT64_MAX)
            front_set_timer(f, exclusive_until(f));
        if (!f->counting && f->holder->domain)
            front_advance_domain(f->holder->domain);
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

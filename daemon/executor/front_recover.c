/* Decides about the jobs of an executor that has ended: which is at fault, which may be begun anew without harm, which
 * are lost. Thread: loop. */
#include <string.h>

#include "backend/memory_ids.h"
#include "core/op.h"
#include "executor/front.h"

/* ---- what may be begun anew ---- */

static bool overlap(const struct step_operand *a, const struct step_operand *b)
{
    return a->memory && a->memory == b->memory && a->offset < b->offset + b->extent &&
           b->offset < a->offset + a->extent;
}

/* Whether a later step, or the step itself, writes what it reads: then a second time it would read something else. */
static bool reads_what_is_written(const struct backend_job *job, unsigned i)
{
    const struct step *step = &job->steps[i];
    const bool reads_output = step->plan.kind == PLAN_GEMM && step->plan.gemm.beta != 0;
    const unsigned n = reads_output ? step_operands(step) : step->n_inputs;

    for (unsigned in = 0; in < n; in++)
        for (unsigned j = i; j < job->n_steps; j++)
            for (unsigned out = job->steps[j].n_inputs; out < step_operands(&job->steps[j]); out++)
                if (overlap(&step->operands[in], &job->steps[j].operands[out]))
                    return true;
    return false;
}

/* Doing the job again gives the same: no kernel of a user, and no step reads what it or a later one writes. */
static bool is_repeatable(const struct backend_job *job)
{
    for (unsigned i = 0; i < job->n_steps; i++)
        if (job->steps[i].plan.kind == PLAN_KERNEL || reads_what_is_written(job, i))
            return false;
    return true;
}

/* ---- who is at fault ---- */

static bool has_kernel(const struct backend_job *job)
{
    for (unsigned i = 0; i < job->n_steps; i++)
        if (job->steps[i].plan.kind == PLAN_KERNEL)
            return true;
    return false;
}

static struct backend_job *first_job(const struct front_stream *s)
{
    return list_entry(list_first(&s->jobs), struct backend_job, link);
}

/* The first job of each stream may have run when the executor was lost. Of those, the ones with kernels of users may be
 * at fault. */
static bool is_suspect(const struct front_stream *s)
{
    return s->sent && has_kernel(first_job(s));
}

static unsigned count_suspects(const struct executor *x)
{
    unsigned n = 0;

    list_for_each_safe (node, after, &x->streams) {
        n += is_suspect(list_entry(node, struct front_stream, on_link));
    }
    return n;
}

/* Names the only kernel of several steps. */
static void blame_kernel(const struct backend_job *job, struct error *e)
{
    unsigned n = 0, last = 0;

    for (unsigned i = 0; i < job->n_steps; i++)
        if (job->steps[i].plan.kind == PLAN_KERNEL) {
            n++;
            last = i;
        }
    if (n == 1)
        backend_job_blame(job, last, e);
}

static const char *text_detail(const struct error *e, const char *key)
{
    for (unsigned i = 0; i < e->n_details; i++)
        if (e->details[i].is_text && !strcmp(e->details[i].key, key))
            return e->details[i].text;
    return NULL;
}

static void accuse(const struct executor *x, const struct front_job *own, unsigned suspects, struct error *ret)
{
    const struct backend_job *job = own->job;
    const char *driver = own->told ? text_detail(&job->error, "driver") : NULL;

    error_set(ret, ERROR_DEVICE_FAULT, "%s: %s",
              suspects > 1 ? "the kernel, or another one that ran beside it, broke the GPU's context"
                           : "the kernel broke the GPU's context",
              driver ? driver : x->why.message);
    if (driver)
        error_detail_text(ret, "driver", driver);
    if (suspects > 1)
        error_detail_number(ret, "suspects", suspects);
    blame_kernel(job, ret);
}

/* ---- the decision ---- */

/* Its word, which the GPU writes behind the work, says that it was done. */
static bool has_signalled(const struct backend_job *job)
{
    const struct backend_memory *page = job->signal.page;

    return page && page->host &&
           __atomic_load_n((const uint64_t *)(const void *)(page->host + job->signal.offset), __ATOMIC_ACQUIRE) >=
               job->signal.value;
}

static void begin_anew(struct backend_job *job)
{
    job->started_ns = 0;
    job->ended = 0;
    job->n_samples = 0;
    job->begun_anew++;
}

/* Takes the stream's first job back from the executor, and ends it where it cannot go on. */
static void decide(struct executor *x, struct front_stream *s, struct backend_job *job, bool first, unsigned suspects)
{
    struct front_job *own = front_job_of(job);
    const bool culprit = own == x->culprit;
    struct front *f = x->front;
    struct error e;

    if (culprit) {
        e = x->why;
        job->forced = e.code == ERROR_CANCELLED || e.code == ERROR_JOB_TIMEOUT;
        f->counts.ended_jobs++;
    } else if (first && suspects && has_kernel(job)) {
        accuse(x, own, suspects, &e);
        f->counts.faults++;
    } else {
        error_set(&e, ERROR_DEVICE_LOST,
                  "the GPU's context was lost because of other work in it, and doing this again might give a wrong "
                  "result: its outputs are undefined");
    }
    front_take_back(own);
    if (!culprit && has_signalled(job))
        front_end(s, job, NULL);
    else if (culprit || !is_repeatable(job) || job->begun_anew >= FRONT_REPEATS_MAX)
        front_end(s, job, &e);
    else
        begin_anew(job);
}

static void recover_stream(struct executor *x, struct front_stream *s, unsigned suspects)
{
    struct list *node = list_first(&s->jobs);
    bool first = true;

    /* Those that stay are sent again, before the ones that were not sent. */
    s->unsent = &s->jobs;
    for (struct list *after; s->sent; node = after, first = false) {
        struct backend_job *job = list_entry(node, struct backend_job, link);

        after = node->next;
        decide(x, s, job, first, suspects);
    }
    s->unsent = list_empty(&s->jobs) ? &s->jobs : list_first(&s->jobs);
    list_remove(&s->on_link);
    s->on = NULL;
}

void front_recover(struct executor *x, struct list *ret_streams)
{
    const unsigned suspects = x->culprit || x->abandoned ? 0 : count_suspects(x);
    struct list *node;

    list_init(ret_streams);
    while ((node = list_first(&x->streams))) {
        struct front_stream *s = list_entry(node, struct front_stream, on_link);

        recover_stream(x, s, suspects);
        list_remove(&s->blocked_link);
        list_append(ret_streams, &s->blocked_link);
    }
}

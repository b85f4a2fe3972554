/* Decides about the jobs of an executor that has ended: which is at fault, which may be begun anew without harm, which
 * are lost. Thread: loop. */
#include <string.h>

#include "executor/front_policy.h"

/* ---- who is at fault ---- */

bool front_has_kernel(const struct backend_job *job)
{
    for (unsigned i = 0; i < job->n_steps; i++)
        if (job->steps[i].plan.kind == PLAN_KERNEL)
            return true;
    return false;
}

/* The job's word, which the GPU writes behind the work, says that it was done. */
static bool has_signalled(const struct front_job *own)
{
    const struct backend_job *job = own->job;
    const struct backend_memory *page = job->signal.page;

    /* The client can write the word, too. */
    if (own->told || own == own->stream->on->culprit)
        return false;
    return page && page->host &&
           __atomic_load_n((const uint64_t *)(const void *)(page->host + job->signal.offset), __ATOMIC_ACQUIRE) >=
               job->signal.value;
}

static struct backend_job *job_of(struct list *node)
{
    return list_entry(node, struct backend_job, link);
}

static void end_done(struct front_stream *s, struct front_job *own)
{
    struct backend_job *job = own->job;

    job->started_ns = own->submitted_ns;
    job->ended = job->warmup + job->repeat;
    if (job->n_samples != job->repeat)
        job->n_samples = 0;
    front_take_back(own);
    front_end(s, job, NULL);
}

/* Ends the stream's jobs that were done: those up to the last one that has signalled. */
static void end_signalled(struct front_stream *s)
{
    struct list *node = list_first(&s->jobs);
    unsigned n = 0;

    for (unsigned i = 1; i <= s->sent; i++, node = node->next)
        if (has_signalled(front_job_of(job_of(node))))
            n = i;
    while (n--)
        end_done(s, front_job_of(job_of(list_first(&s->jobs))));
}

/* Of the jobs that may have run, those with kernels of users may be at fault. */
static bool is_suspect(const struct front_stream *s)
{
    struct backend_job *first = s->sent ? job_of(list_first(&s->jobs)) : NULL;

    return first && front_has_kernel(first) && front_may_have_run(front_job_of(first));
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

static void begin_anew(struct backend_job *job)
{
    job->started_ns = 0;
    job->ended = 0;
    job->n_samples = 0;
    job->begun_anew++;
}

/* Why the job of the executor cannot go on. */
static void explain(const struct executor *x, const struct front_job *own, bool first, unsigned suspects,
                    struct error *ret)
{
    struct front *f = x->front;
    struct backend_job *job = own->job;

    if (own == x->culprit) {
        *ret = x->why;
        job->forced = ret->code == ERROR_CANCELLED || ret->code == ERROR_JOB_TIMEOUT;
        f->counts.ended_jobs++;
    } else if (first && suspects && front_has_kernel(job)) {
        accuse(x, own, suspects, ret);
        f->counts.faults++;
    } else {
        error_set(ret, ERROR_DEVICE_LOST,
                  "%s, and doing this again might give a wrong result: its outputs are undefined",
                  x->killed ? "the process that did this was killed from outside, for example for want of memory"
                            : "the GPU's context was lost because of other work in it");
    }
}

/* Ends the job, which is lost: after those before it that are begun anew. */
static void lose(struct front_stream *s, struct backend_job *job, bool waits, const struct error *why)
{
    if (!waits) {
        front_end(s, job, why);
        return;
    }
    job->failed = true;
    job->error = *why;
}

static void recover_stream(struct executor *x, struct front_stream *s, unsigned suspects, unsigned *steps)
{
    struct list *node = list_first(&s->jobs);
    bool first = true, waits = false;

    front_choose_again(s, x->culprit, steps);
    s->refused = false;
    /* Those that stay are sent again, before the ones that were not sent. */
    s->unsent = &s->jobs;
    for (struct list *after; s->sent; node = after, first = false) {
        struct backend_job *job = job_of(node);
        struct front_job *own = front_job_of(job);
        const bool again = own->again;
        struct error e;

        after = node->next;
        if (!again)
            explain(x, own, first && front_may_have_run(own), suspects, &e);
        front_take_back(own);
        if (again)
            begin_anew(job);
        else
            lose(s, job, waits, &e);
        waits = waits || again;
    }
    s->unsent = list_empty(&s->jobs) ? &s->jobs : list_first(&s->jobs);
    list_remove(&s->on_link);
    s->on = NULL;
}

void front_recover(struct executor *x, struct list *ret_streams)
{
    unsigned suspects, steps = 0;
    struct list *node;

    front_take_rest(x);
    list_for_each_safe (stream, after, &x->streams) {
        end_signalled(list_entry(stream, struct front_stream, on_link));
    }
    suspects = x->culprit || x->abandoned || x->killed ? 0 : count_suspects(x);
    list_init(ret_streams);
    while ((node = list_first(&x->streams))) {
        struct front_stream *s = list_entry(node, struct front_stream, on_link);

        recover_stream(x, s, suspects, &steps);
        list_remove(&s->blocked_link);
        list_append(ret_streams, &s->blocked_link);
    }
}

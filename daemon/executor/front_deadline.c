/* Ends jobs that run, where the daemon must: by the end of their executor, of which there is one for each domain. The
 * driver has no other way to stop a kernel. Thread: loop. */
#include "executor/front.h"
#include "util/clock.h"

enum { GRACE_NS = 5000000 /* for a job that ends by itself */ };

static void end(struct executor *x, struct front_job *own, const struct error *why)
{
    if (atomic_load(&x->gone))
        return;
    x->culprit = own;
    front_kill(x, why);
}

static void set_end(struct front *f, struct front_job *own, uint64_t end_ns)
{
    own->end_ns = end_ns;
    if (end_ns < f->next_end_ns)
        f->next_end_ns = end_ns;
    front_set_timer(f, end_ns);
}

void front_end_soon(struct front *f, struct front_job *own)
{
    set_end(f, own, clock_now_ns() + GRACE_NS);
}

void front_end_late(struct executor *x, uint64_t since_ns, uint64_t longest_ns)
{
    const uint64_t now_ns = clock_now_ns();

    list_for_each_safe (node, after, &x->streams) {
        const struct front_stream *s = list_entry(node, struct front_stream, on_link);
        struct front_job *first =
            s->sent ? front_job_of(list_entry(list_first(&s->jobs), struct backend_job, link)) : NULL;
        struct error e;

        if (!first || now_ns < (first->first_ns > since_ns ? first->first_ns : since_ns) + longest_ns) {
            if (!first || now_ns < since_ns + 2 * longest_ns)
                continue;
        }
        error_set(&e, ERROR_JOB_TIMEOUT,
                  "the job ran longer than %llu s while kernels of others waited for the GPU, so it was ended",
                  (unsigned long long)(longest_ns / 1000000000));
        error_detail_number(&e, "timeout_s", (int64_t)(longest_ns / 1000000000));
        end(x, first, &e);
        return;
    }
}

/* The job that is to end by now, or NULL; *next_ns: the earliest of the others. */
static struct front_job *find_due(struct executor *x, uint64_t now_ns, uint64_t *next_ns)
{
    struct front_job *due = NULL;

    list_for_each_safe (node, after, &x->streams) {
        const struct front_stream *s = list_entry(node, struct front_stream, on_link);
        struct front_job *own =
            s->sent ? front_job_of(list_entry(list_first(&s->jobs), struct backend_job, link)) : NULL;

        /* Only the first of a stream runs. */
        if (own && own->end_ns && own->end_ns <= now_ns)
            due = own;
        else if (own && own->end_ns && own->end_ns < *next_ns)
            *next_ns = own->end_ns;
    }
    return due;
}

void front_deadlines_turn(struct front *f)
{
    const uint64_t now_ns = f->next_end_ns == UINT64_MAX ? 0 : clock_now_ns();
    uint64_t next_ns = UINT64_MAX;

    if (now_ns < f->next_end_ns) {
        if (f->next_end_ns != UINT64_MAX)
            front_set_timer(f, f->next_end_ns); /* an earlier one may have been in its place */
        return;
    }
    list_for_each_safe (node, after, &f->executors) {
        struct executor *x = list_entry(node, struct executor, link);
        struct front_job *due = x->domain && !x->common ? find_due(x, now_ns, &next_ns) : NULL;
        struct error e;

        if (!due)
            continue;
        error_set(&e, ERROR_CANCELLED, "the job was ended while it ran");
        end(x, due, &e);
    }
    f->next_end_ns = next_ns;
    if (next_ns != UINT64_MAX)
        front_set_timer(f, next_ns);
}

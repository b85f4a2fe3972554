/* Jobs that must end. The daemon kills an executor to end a job, since the driver has no other way to stop a kernel.
 * Thread: loop. */
#include "executor/front.h"
#include "util/clock.h"

enum {
    GRACE_NS = 5000000,          /* time for a job that ends by itself */
    OPENING_GRACE_NS = 100000000 /* time for calls of the driver: few take longer */
};

bool front_has_kernel(const struct backend_job *job)
{
    for (unsigned i = 0; i < job->n_steps; i++)
        if (job->steps[i].plan.kind == PLAN_KERNEL)
            return true;
    return false;
}

static void end_with(struct executor *x, struct front_job *own, const struct error *why)
{
    if (atomic_load(&x->gone))
        return;
    x->culprit = own;
    front_kill(x, why);
}

static uint64_t end_in(struct front *f, uint64_t grace_ns)
{
    const uint64_t end_ns = clock_now_ns() + grace_ns;

    if (end_ns < f->next_end_ns)
        f->next_end_ns = end_ns;
    front_set_timer(f, end_ns);
    return end_ns;
}

void front_end_soon(struct front *f, struct front_job *own)
{
    own->end_ns = end_in(f, GRACE_NS);
}

void front_end_opening(struct front_stream *s)
{
    if (!s->end_ns)
        s->end_ns = end_in(s->device->front, OPENING_GRACE_NS);
}

/* The first job of a stream that more likely keeps the others waiting: users' kernels may never end. */
static const struct front_job *slower(const struct front_job *a, const struct front_job *b)
{
    const bool kernel = a && front_has_kernel(a->job), other = front_has_kernel(b->job);

    if (!a || kernel != other)
        return kernel ? a : b;
    return a->first_ns <= b->first_ns ? a : b;
}

void front_end_late(struct executor *x, const struct front_device *gpu, uint64_t since_ns, uint64_t longest_ns)
{
    const uint64_t now_ns = clock_now_ns();
    const struct front_job *slowest = NULL;
    bool late = false;
    struct error e;

    list_each (struct front_stream, s, on_link, &x->streams) {
        const struct front_job *first = gpu && s->device != gpu ? NULL : front_first_of(s);
        const uint64_t begin_ns = first && first->first_ns > since_ns ? first->first_ns : since_ns;

        if (!first || now_ns < begin_ns + longest_ns / 2)
            continue;
        late = late || now_ns >= begin_ns + longest_ns;
        slowest = slower(slowest, first);
    }
    if (!late)
        return;
    error_set(&e, ERROR_JOB_TIMEOUT,
              "the job ran longer than %llu s while kernels of others waited for the GPU, so it was ended",
              (unsigned long long)(longest_ns / 1000000000));
    error_detail_number(&e, "timeout_s", (int64_t)(longest_ns / 1000000000));
    end_with(x, front_job_of(slowest->job), &e);
}

/* The job that is to end by now, or NULL; *next_ns: the earliest end of the others. */
static struct front_job *find_due(struct executor *x, uint64_t now_ns, uint64_t *next_ns)
{
    struct front_job *due = NULL;

    list_each (struct front_stream, s, on_link, &x->streams) {
        struct front_job *own = front_first_of(s);

        /* Only the first job of a stream runs. */
        if (own && own->end_ns && own->end_ns <= now_ns)
            due = own;
        else if (own && own->end_ns && own->end_ns < *next_ns)
            *next_ns = own->end_ns;
    }
    return due;
}

/* Ends the executors that still open objects for a job that is to end by now. */
static void end_openings(struct front *f, uint64_t now_ns, uint64_t *next_ns)
{
    list_each (struct front_stream, s, link, &f->busy) {
        struct executor *x = s->opening && s->end_ns && s->domain ? s->domain->executor : NULL;
        struct error e;

        if (!x || atomic_load(&x->gone))
            continue;
        if (now_ns < s->end_ns) {
            *next_ns = s->end_ns < *next_ns ? s->end_ns : *next_ns;
            continue;
        }
        error_set(&e, ERROR_DEVICE_LOST, "the driver took too long to open what a cancelled job needs");
        s->next->forced = true;
        x->abandoned = true;
        front_kill(x, &e);
    }
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
    list_each (struct executor, x, link, &f->executors) {
        struct front_job *due = x->domain && !x->common ? find_due(x, now_ns, &next_ns) : NULL;
        struct error e;

        if (!due)
            continue;
        error_set(&e, ERROR_CANCELLED, "the job was ended while it ran");
        end_with(x, due, &e);
    }
    end_openings(f, now_ns, &next_ns);
    f->next_end_ns = next_ns;
    if (next_ns != UINT64_MAX)
        front_set_timer(f, next_ns);
}

/* Turns of domains: few of them have work on the GPUs at a time, since contexts share a GPU by time slices, and every
 * one that is busy makes the others wait longer. The one that has had least goes next. Thread: loop. */
#include "executor/front_policy.h"
#include "util/clock.h"

enum {
    TURN_NS = 5000000,  /* how long a domain sends while others wait; what it has sent then ends */
    AHEAD = 8,          /* jobs that a domain has in its executor while others wait */
    AHEAD_ALONE = 32,   /* the same while none waits: what is there when one comes goes on */
    AHEAD_FIRST = 4,    /* the same before the first one of them has ended: each that ends makes it one more */
    AHEAD_LEAST = 2,    /* the same where jobs last long: one follows the other at once */
    AHEAD_NS = 20000000 /* how long the jobs in an executor take together, where there are more than that */
};

static unsigned max_turns(const struct front *f)
{
    return f->config.executors_active ? f->config.executors_active : 1;
}

static bool has_executor(const struct front_domain *d)
{
    return d->executor && d->executor->ready;
}

/* Of the waiting domains that have an executor, the one that has had least; NULL: none. */
static struct front_domain *next_of(const struct front *f)
{
    struct front_domain *next = NULL;

    list_for_each_safe (node, after, &f->domains) {
        struct front_domain *d = list_entry(node, struct front_domain, link);

        if (d->waiting_ns && has_executor(d) && (!next || d->had_ns < next->had_ns))
            next = d;
    }
    return next;
}

/* A domain that comes anew has no claim on the time before. */
static void wait_in_line(struct front *f, struct front_domain *d, uint64_t now_ns)
{
    uint64_t least_ns = UINT64_MAX;

    if (d->waiting_ns)
        return;
    list_for_each_safe (node, after, &f->domains) {
        const struct front_domain *other = list_entry(node, struct front_domain, link);

        if ((other->waiting_ns || other->has_turn) && other != d && other->had_ns < least_ns)
            least_ns = other->had_ns;
    }
    if (least_ns != UINT64_MAX && d->had_ns < least_ns)
        d->had_ns = least_ns;
    d->waiting_ns = now_ns;
    f->n_waiting++;
}

static void begin_turn(struct front *f, struct front_domain *d, uint64_t now_ns)
{
    if (d->waiting_ns)
        f->n_waiting--;
    d->waiting_ns = 0;
    d->has_turn = true;
    d->turn_ns = now_ns;
    f->n_turns++;
    if (f->n_waiting) /* end_turns() has to look again: jobs of this turn may never end */
        front_set_timer(f, now_ns + TURN_NS);
}

static void end_turn(struct front *f, struct front_domain *d, uint64_t now_ns)
{
    d->has_turn = false;
    d->had_ns += now_ns - d->turn_ns;
    f->n_turns--;
}

static unsigned jobs_of(const struct front_domain *d)
{
    return d->executor ? d->executor->unfinished : 0;
}

/* How many of its jobs the domain may have in its executor: nobody knows how long the first ones take. */
static unsigned ahead(const struct front_domain *d, unsigned most)
{
    const uint64_t job_ns = d->executor ? d->executor->job_ns : 0;
    const unsigned ended = d->executor ? d->executor->in_a_row : 0;

    if (ended < most && ended + AHEAD_FIRST < most)
        most = ended + AHEAD_FIRST;
    if (job_ns * most <= AHEAD_NS)
        return most;
    return job_ns * AHEAD_LEAST >= AHEAD_NS ? AHEAD_LEAST : (unsigned)(AHEAD_NS / job_ns);
}

/* Whether the domain, which has the turn, sends on. */
static bool goes_on(const struct front *f, const struct front_domain *d)
{
    if (!f->n_waiting)
        return jobs_of(d) < ahead(d, AHEAD_ALONE);
    return jobs_of(d) < ahead(d, AHEAD) && clock_now_ns() < d->turn_ns + TURN_NS;
}

bool front_turn_take(struct front *f, struct front_domain *d)
{
    if (d->key == DOMAIN_COMMON)
        return true;
    if (d->leaving_ns)
        return false;
    if (d->has_turn && goes_on(f, d))
        return true;
    if (d->has_turn || d->waiting_ns)
        return false;
    if (f->n_turns < max_turns(f) && (!f->n_waiting || next_of(f) == d)) {
        begin_turn(f, d, clock_now_ns());
        return true;
    }
    wait_in_line(f, d, clock_now_ns());
    front_tell(f); /* the one that has the turn may be idle */
    return false;
}

void front_turn_drop(struct front *f, struct front_domain *d)
{
    if (d->waiting_ns)
        f->n_waiting--;
    d->waiting_ns = 0;
    if (d->has_turn)
        end_turn(f, d, clock_now_ns());
}

/* Since when a domain waits that could go on. */
static uint64_t waiting_since(const struct front *f)
{
    uint64_t since_ns = UINT64_MAX;

    list_for_each_safe (node, after, &f->domains) {
        const struct front_domain *d = list_entry(node, struct front_domain, link);

        uint64_t own_ns = d->waiting_ns;

        if (!d->waiting_ns || !has_executor(d))
            continue;
        own_ns = d->place_ns > own_ns ? d->place_ns : own_ns;
        own_ns = d->executor->ready_ns > own_ns ? d->executor->ready_ns : own_ns;
        since_ns = own_ns < since_ns ? own_ns : since_ns;
    }
    return since_ns;
}

/* Ends turns that are over; looks for jobs that last too long. */
static void end_turns(struct front *f, uint64_t now_ns)
{
    const uint64_t since_ns = waiting_since(f);

    list_for_each_safe (node, after, &f->domains) {
        struct front_domain *d = list_entry(node, struct front_domain, link);

        if (!d->has_turn)
            continue;
        if (!jobs_of(d) && (list_empty(&d->blocked) || now_ns >= d->turn_ns + TURN_NS || !d->executor)) {
            end_turn(f, d, now_ns);
            if (!list_empty(&d->blocked))
                wait_in_line(f, d, now_ns);
        } else if (d->executor) {
            if (since_ns != UINT64_MAX)
                front_end_late(d->executor, since_ns, FRONT_LONGEST_NS);
            front_set_timer(f, now_ns < d->turn_ns + TURN_NS ? d->turn_ns + TURN_NS : now_ns + FRONT_LONGEST_NS / 8);
        }
    }
}

void front_turns_turn(struct front *f)
{
    if (!f->n_waiting)
        return;
    end_turns(f, clock_now_ns());
    while (f->n_waiting && f->n_turns < max_turns(f)) {
        struct front_domain *d = next_of(f);

        if (!d)
            return;
        begin_turn(f, d, clock_now_ns());
        front_advance_domain(d);
    }
}

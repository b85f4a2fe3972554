/* Places for executors: how many there may be, and which domain has one. The executor that had no job for longest makes
 * room. Where all have jobs, the one that its domain has had for longest gets no more. Thread: loop. */
#include "executor/front_policy.h"
#include "util/clock.h"

enum {
    DEFAULT_MAX = 8,
    OTHERS = 2,           /* places that are not for domains: the common executor's and a spare's */
    IDLE_NS = 500000000,  /* how long a domain keeps its executor without work while others wait for one */
    PLACE_NS = 2000000000 /* the same with work; a start takes 0.5 s */
};

/* Executors of one user, or of all. */
struct places {
    unsigned n;
    bool one_ends;            /* there will be a place */
    struct front_domain *old; /* has had its executor for longest; NULL: none has one that could go */
    struct executor *idle;    /* had its last job before the others that have none; NULL: all have some */
};

static bool is_idle(const struct executor *x)
{
    return !x->domain->streams && !x->domain->n_work && !x->unfinished;
}

static void look_at(struct places *p, struct executor *x)
{
    struct front_domain *d = x->domain;

    p->n++;
    if (x->stop || atomic_load(&x->gone) || (d && d->leaving_ns)) {
        p->one_ends = true;
        return;
    }
    if (!d || x->common || !x->ready)
        return;
    if (!p->old || d->place_ns < p->old->place_ns)
        p->old = d;
    if (is_idle(x) && (!p->idle || x->used_ns < p->idle->used_ns))
        p->idle = x;
}

/* `of`: a domain of the user; NULL: of all. */
static struct places count(struct front *f, const struct front_domain *of)
{
    struct places p = {0};

    pthread_mutex_lock(&f->lock);
    list_for_each_safe (node, after, &f->executors) {
        struct executor *x = list_entry(node, struct executor, link);

        if (!of || (!x->common && x->key && domain_owner(x->key) == domain_owner(of->key)))
            look_at(&p, x);
    }
    pthread_mutex_unlock(&f->lock);
    return p;
}

static unsigned max_of_all(const struct front *f)
{
    const unsigned max = f->config.executors_max ? f->config.executors_max : DEFAULT_MAX;

    return max < EXECUTORS_MAX ? max : EXECUTORS_MAX;
}

/* One user gets at most half of the places that are for domains. */
static unsigned max_of_user(const struct front *f)
{
    const unsigned max = max_of_all(f);

    return max > 2 * OTHERS ? (max - OTHERS) / 2 : 1;
}

void front_executor_dismiss(struct executor *x)
{
    while (!list_empty(&x->streams))
        front_stream_leave(list_entry(list_first(&x->streams), struct front_stream, on_link));
    front_domain_lose(x);
    front_executor_stop(x);
}

static void free_one(struct front *f, const struct places *p)
{
    const uint64_t now_ns = clock_now_ns();

    f->wants_room = true;
    if (p->one_ends)
        return;
    if (p->idle && now_ns >= p->idle->domain->place_ns + IDLE_NS) {
        front_executor_dismiss(p->idle);
    } else if (p->old && now_ns >= p->old->place_ns + PLACE_NS) {
        p->old->leaving_ns = now_ns;
        front_tell(f);
    } else if (p->old) {
        front_set_timer(f, p->idle ? p->idle->domain->place_ns + IDLE_NS : p->old->place_ns + PLACE_NS);
    }
}

/* Whether another domain has waited longer for the place. */
static bool is_before(struct front *f, const struct front_domain *d)
{
    list_for_each_safe (node, after, &f->domains) {
        const struct front_domain *other = list_entry(node, struct front_domain, link);

        if (other == d || !other->room_ns || other->room_ns >= d->room_ns)
            continue;
        if (domain_owner(other->key) == domain_owner(d->key) || count(f, other).n < max_of_user(f))
            return true;
    }
    return false;
}

bool front_place_take(struct front *f, struct front_domain *d, bool spare)
{
    struct places p;

    if (!d->room_ns)
        d->room_ns = clock_now_ns();
    if (is_before(f, d))
        return false;
    p = count(f, d);
    if (p.n < max_of_user(f)) {
        p = count(f, NULL);
        if (spare || p.n < max_of_all(f)) {
            d->room_ns = 0;
            return true;
        }
    }
    free_one(f, &p);
    return false;
}

bool front_place_is_free(struct front *f)
{
    return count(f, NULL).n < max_of_all(f);
}

void front_place_leave(struct front_domain *d)
{
    struct executor *x = d->executor;
    const uint64_t since_ns = d->leaving_ns;

    if (!since_ns || !x)
        return;
    if (x->unfinished) {
        front_end_late(x, NULL, since_ns, front_longest_ns(x->front));
        front_set_timer(x->front, clock_now_ns() + front_longest_ns(x->front) / 8);
    } else if (!d->n_given) {
        front_executor_dismiss(x);
    }
}

/* Domains, the work that waits for their executors, and which executors there are. */
#include <stdlib.h>

#include "executor/confine.h"
#include "executor/front.h"
#include "util/clock.h"

enum {
    DOMAIN_FAILURES_MAX = 2,    /* starts for a domain in a row, before its jobs fail */
    FAILURES_MAX = 6,           /* starts of the common executor in a row, before the devices are given up */
    RETRY_NS = 100000000,       /* doubled with every failure */
    SPARE_DELAY_NS = 300000000, /* a machine makes 3 to 6 contexts a second; others need them more than a spare */
    DEFAULT_MAX = 8,
    OTHERS = 2,           /* places that are not for domains: the common executor's and a spare's */
    IDLE_NS = 500000000,  /* time that a domain keeps its executor without work while others wait for one */
    PLACE_NS = 2000000000 /* time that it keeps one with work; a start takes 0.5 s */
};

/* Time that a connection without code keeps its executor after a job. */
#define LINGER_NS UINT64_C(10000000000)
/* Time that a domain keeps its place while objects that its job needs are opened, and others wait for one. */
#define OPENING_NS UINT64_C(10000000000)

/* The executor whose keeper this thread is, while it does a domain's work: it waits for no other one. */
static _Thread_local struct executor *keeper_of;

/* ---- domains ---- */

struct front_domain *front_domain_get(struct front *f, uint64_t key)
{
    struct list *const lists[] = {&f->domains, &f->new_domains};
    struct front_domain *d;

    for (unsigned i = 0; i < 2; i++)
        list_each (struct front_domain, known, link, lists[i])
            if (known->key == key)
                return known;
    d = calloc(1, sizeof(*d));
    if (!d)
        return NULL;
    d->key = key;
    for (unsigned i = 0; i < BACKEND_MAX_DEVICES; i++)
        list_init(&d->turns[i].blocked);
    list_init(&d->work);
    list_append(&f->new_domains, &d->link);
    atomic_store(&f->news, true);
    return d;
}

void front_domains_take(struct front *f)
{
    struct list *node;

    pthread_mutex_lock(&f->lock);
    while ((node = list_pop(&f->new_domains)))
        list_append(&f->domains, node);
    pthread_mutex_unlock(&f->lock);
}

static bool serves(const struct executor *x)
{
    return x && x->state == PROCESS_SERVING && !front_is_lost(x);
}

/* Why the domain gets no executor; false: it may yet. Thread: any, with front.lock held, or the loop. */
static bool is_refused(const struct front *f, const struct front_domain *d, struct error *e)
{
    if (f->lost.code != ERROR_NONE)
        *e = f->lost;
    else if (f->closing || (f->ending && d->key != DOMAIN_COMMON))
        error_set(e, ERROR_SHUTTING_DOWN, "the daemon is ending; connect again");
    else if (d->key != DOMAIN_COMMON && d->failures >= DOMAIN_FAILURES_MAX && clock_now_ns() < d->retry_ns)
        *e = d->error;
    else
        return false;
    return true;
}

struct executor *front_executor_of(struct front *f, uint64_t key, struct error *e)
{
    const struct executor *keeper = keeper_of;
    struct front_domain *d;
    struct executor *x = NULL;

    pthread_mutex_lock(&f->lock);
    d = front_domain_get(f, key);
    if (!d) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a domain");
        goto out;
    }
    d->codes++; /* keeps it */
    while (!keeper && !serves(d->executor) && !is_refused(f, d, e)) {
        d->wanted = true;
        front_tell(f);
        pthread_cond_wait(&f->changed, &f->lock);
    }
    d->codes--;
    if (serves(d->executor) && (!keeper || d->executor == keeper)) {
        x = d->executor;
        x->users++;
    } else if (keeper) {
        error_set(e, ERROR_DEVICE_LOST, "the executor of the GPU has ended");
    }

out:
    pthread_mutex_unlock(&f->lock);
    return x;
}

bool front_try_next(struct front_try *t, int r, struct error *e)
{
    const bool again = !t->x || (r < 0 && front_is_lost(t->x));

    if (t->x)
        front_executor_release(t->x);
    t->x = again && t->n++ < FRONT_TRIES ? front_executor_of(t->front, t->key, e) : NULL;
    return t->x;
}

/* ---- domains' executors. Thread: the loop from here on, where nothing else is said ---- */

void front_domain_lose(struct executor *x)
{
    struct front *f = x->front;
    struct front_domain *d = x->domain;

    if (!d || d->executor != x)
        return;
    pthread_mutex_lock(&f->lock);
    d->executor = NULL;
    d->leaving_ns = 0;
    x->domain = NULL;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* ---- work of domains: keepers do it, since it may take as long as the domain's kernels run ---- */

struct given {
    struct front_task task; /* first */
    struct list link;       /* in front_domain.work, or in front.worked */
    struct front_domain *domain;
    struct backend_work *work;
    unsigned tries;
    bool refused; /* why */
    struct error why;
};

/* Does the work on the keeper, once more where the executor was lost meanwhile. */
static void run_work(struct executor *x, struct front_task *task)
{
    struct given *g = (struct given *)(void *)task;
    struct front *f = x->front;
    bool again;
    int r;

    keeper_of = x;
    r = g->work->run(g->work);
    keeper_of = NULL;
    again = r < 0 && front_is_lost(x) && ++g->tries < FRONT_TRIES;
    pthread_mutex_lock(&f->lock);
    g->domain->n_given--;
    list_append(again ? &g->domain->work : &f->worked, &g->link);
    pthread_mutex_unlock(&f->lock);
    front_tell(f);
}

int front_work(struct backend_device *device, uint64_t key, struct backend_work *work, struct error *e)
{
    struct front *f = front_device(device)->front;
    struct given *g = calloc(1, sizeof(*g));

    pthread_mutex_lock(&f->lock);
    if (g)
        g->domain = front_domain_get(f, key);
    if (g && g->domain) {
        g->task.run = run_work;
        g->work = work;
        g->domain->n_work++;
        list_append(&g->domain->work, &g->link);
    }
    pthread_mutex_unlock(&f->lock);
    front_tell(f);
    if (g && g->domain)
        return 0;
    free(g);
    return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for work of a domain");
}

void front_domain_give_work(struct front_domain *d)
{
    struct executor *x = d->executor;
    struct list *node;

    if (!x || !x->ready || front_is_lost(x))
        return;
    pthread_mutex_lock(&x->front->lock);
    while ((node = list_pop(&d->work))) {
        struct given *g = list_entry(node, struct given, link);

        if (!front_task_add(x, &g->task)) { /* the executor is about to end: the next one gets it */
            list_append(&d->work, node);
            break;
        }
        d->n_given++;
    }
    pthread_mutex_unlock(&x->front->lock);
}

void front_domain_refuse(struct front *f, struct front_domain *d, const struct error *why)
{
    pthread_mutex_lock(&f->lock);
    list_each (struct given, g, link, &d->work) {
        g->refused = true;
        g->why = *why;
        list_remove(&g->link);
        list_append(&f->worked, &g->link);
    }
    d->wanted = false;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

void front_work_done(struct front *f)
{
    struct list worked, *node;

    pthread_mutex_lock(&f->lock);
    list_take(&worked, &f->worked);
    list_each (struct given, g, link, &worked)
        g->domain->n_work--;
    pthread_mutex_unlock(&f->lock);
    while ((node = list_pop(&worked))) {
        struct given *g = list_entry(node, struct given, link);

        g->work->done(g->work, g->refused ? &g->why : NULL);
        free(g);
    }
}

bool front_domain_lingers(const struct front_domain *d)
{
    const struct executor *x = d->executor;

    if (d->ended || x->counts >= 0 || !x->useful || clock_now_ns() >= x->used_ns + LINGER_NS)
        return false;
    front_set_timer(x->front, x->used_ns + LINGER_NS);
    return true;
}

void front_domain_rests(const struct executor *x)
{
    struct front *f = x->front;
    const struct front_domain *d = x->domain;
    bool has_code;

    if (!d || !domain_is_of_connection(d->key))
        return;
    pthread_mutex_lock(&f->lock);
    has_code = d->codes;
    pthread_mutex_unlock(&f->lock);
    if (d->ended)
        front_tell(f);
    else if (!has_code)
        front_set_timer(f, x->used_ns + LINGER_NS);
}

void front_domain_end(struct backend_device *device, uint64_t key)
{
    struct front *f = front_device(device)->front;
    struct list *const lists[] = {&f->domains, &f->new_domains};

    pthread_mutex_lock(&f->lock);
    for (unsigned i = 0; i < 2; i++)
        list_each (struct front_domain, d, link, lists[i])
            if (d->key == key) {
                d->ended = true;
                front_tell(f);
            }
    pthread_mutex_unlock(&f->lock);
}

/* ---- places for executors: the executor that had no job for longest makes room. Where all have jobs, the one that its
 * domain has had for longest gets no more ---- */

struct places {
    unsigned n;
    bool one_ends;            /* a place will become free */
    struct front_domain *old; /* the domain that has had its executor for longest; NULL: none has one that could go */
    struct executor *idle;    /* the executor that has been without jobs for longest; NULL: all have jobs */
};

/* Since when the domain can use its executor. */
static uint64_t place_since(const struct front_domain *d)
{
    return d->executor->ready_ns > d->place_ns ? d->executor->ready_ns : d->place_ns;
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
    if (!x->useful && d->opening && clock_now_ns() < place_since(d) + OPENING_NS) {
        front_set_timer(x->front, place_since(d) + OPENING_NS);
        return;
    }
    if (!p->old || place_since(d) < place_since(p->old))
        p->old = d;
    if (!d->streams && !d->n_work && !x->unfinished && (!p->idle || x->used_ns < p->idle->used_ns))
        p->idle = x;
}

/* Counts the executors of the user that the domain `of` belongs to; NULL: of all. */
static struct places count_places(struct front *f, const struct front_domain *of)
{
    struct places p = {0};

    pthread_mutex_lock(&f->lock);
    list_each (struct executor, x, link, &f->executors) {
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

/* A user gets at most half of the places for domains. */
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
    if (p->idle && now_ns >= place_since(p->idle->domain) + IDLE_NS) {
        front_executor_dismiss(p->idle);
    } else if (p->old && now_ns >= place_since(p->old) + PLACE_NS) {
        p->old->leaving_ns = now_ns;
        front_tell(f);
    } else if (p->old) {
        front_set_timer(f, p->idle ? place_since(p->idle->domain) + IDLE_NS : place_since(p->old) + PLACE_NS);
    }
}

bool front_is_blocked(const struct front *f, const struct front_domain *d)
{
    for (unsigned i = 0; i < f->n_devices; i++)
        if (!list_empty(&d->turns[i].blocked))
            return true;
    return false;
}

bool front_domain_is_awaited(struct front *f, const struct front_domain *d)
{
    bool awaited;

    pthread_mutex_lock(&f->lock);
    awaited = d->wanted || !list_empty(&d->work);
    pthread_mutex_unlock(&f->lock);
    return awaited || front_is_blocked(f, d);
}

static bool is_before(struct front *f, const struct front_domain *d)
{
    list_each (struct front_domain, other, link, &f->domains) {
        if (other == d || !other->room_ns || other->room_ns >= d->room_ns || !front_domain_is_awaited(f, other))
            continue;
        if (domain_owner(other->key) == domain_owner(d->key) || count_places(f, other).n < max_of_user(f))
            return true;
    }
    return false;
}

/* Whether the domain may have an executor now: the spare, or a new one. Otherwise it waits, and others make room. */
static bool take_place(struct front *f, struct front_domain *d, bool spare)
{
    struct places p;

    if (!d->room_ns)
        d->room_ns = clock_now_ns();
    if (is_before(f, d))
        return false;
    p = count_places(f, d);
    if (p.n < max_of_user(f)) {
        p = count_places(f, NULL);
        if (spare || p.n < max_of_all(f)) {
            d->room_ns = 0;
            return true;
        }
    }
    free_one(f, &p);
    return false;
}

static bool has_place(struct front *f)
{
    return count_places(f, NULL).n < max_of_all(f);
}

/* ---- counters by a privilege ---- */

/* The device of the domain's next job; -1: it has none. */
static int device_of_next(const struct front *f, const struct front_domain *d)
{
    list_each (struct front_stream, s, link, &f->busy) {
        if (s->domain == d && s->next)
            return (int)s->device->number;
    }
    return -1;
}

/* Returns the device whose counters the domain's new process takes by a privilege, see confine.h; -1: none, or no
 * privilege is needed, or allowed. */
static int privilege_device(const struct front *f, const struct front_domain *d)
{
    const char *parameters = getenv("KOPS_STANDIN_PARAMETERS"); /* parameters of a stand-in driver for tests */

    if (!domain_is_profiling(d->key) || !f->config.executors_counters_privileged ||
        f->config.executors_sandbox == EXECUTOR_SANDBOX_OFF ||
        !privilege_is_needed(parameters ? parameters : PRIVILEGE_PARAMETERS))
        return -1;
    return device_of_next(f, d);
}

/* Tells whether the domain's executor must end: it took counters and has counted, or took those of another device. */
static bool privilege_is_spent(const struct front *f, const struct front_domain *d)
{
    const struct executor *x = d->executor;

    return x->counts >= 0 && !x->unfinished && (x->loads[x->counts].in_a_row || x->counts != device_of_next(f, d));
}

/* Tells whether no process has taken counters: there is one at a time, until it is reaped. */
static bool privilege_is_free(const struct front *f)
{
    list_each (struct executor, x, link, &f->executors)
        if (x->counts >= 0)
            return false;
    return true;
}

/* ---- which executors there are ---- */

void front_domain_give(struct front_domain *d, struct executor *x)
{
    struct front *f = x->front;

    list_each (struct front_stream, s, link, &f->busy) {
        if (s->domain == d)
            s->end_ns = 0; /* the deadline was for the executor before */
    }
    pthread_mutex_lock(&f->lock);
    x->domain = d;
    x->key = d->key;
    d->executor = x;
    d->place_ns = clock_now_ns();
    if (x->state == PROCESS_SPARE) {
        x->state = PROCESS_SERVING;
        d->wanted = false;
        d->failures = 0;
    }
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static struct executor *find_spare(struct front *f)
{
    struct executor *starting = NULL;

    list_each (struct executor, x, link, &f->executors) {
        if (x->domain || x->common || x->stop || atomic_load(&x->gone))
            continue;
        if (x->ready)
            return x;
        starting = x;
    }
    return starting;
}

void front_domain_delay(struct front_domain *d, struct front *f, const struct error *why)
{
    pthread_mutex_lock(&f->lock);
    d->error = *why;
    d->retry_ns = clock_now_ns() + ((uint64_t)RETRY_NS << (d->failures < 7 ? d->failures : 7));
    d->failures++;
    if (d->key == DOMAIN_COMMON && d->failures >= FAILURES_MAX)
        f->lost = d->error;
    pthread_mutex_unlock(&f->lock);
    front_set_timer(f, d->retry_ns);
}

/* The domain's process, a spare or a new one. NULL: none yet, or *e. */
static struct executor *find_process(struct front_domain *d, struct front *f, struct error *e)
{
    const int counts = privilege_device(f, d);
    struct executor *x = d->key == DOMAIN_COMMON || counts >= 0 ? NULL : find_spare(f);

    e->code = ERROR_NONE;
    if (counts >= 0 && !privilege_is_free(f))
        return NULL;
    if (d->key != DOMAIN_COMMON && !take_place(f, d, x != NULL)) {
        struct executor *spare = counts < 0 || has_place(f) ? NULL : find_spare(f);

        if (spare) /* no process that counts, but it makes room for one */
            front_executor_stop(spare);
        return NULL;
    }
    if (x)
        return x;
    x = front_executor_start(f, d->key == DOMAIN_COMMON, counts, e);
    if (x)
        f->last_start_ns = clock_now_ns();
    return x;
}

int front_domain_serve(struct front_domain *d, struct front *f, struct error *e)
{
    struct executor *x;
    uint64_t now_ns;

    if (d->executor && privilege_is_spent(f, d))
        front_executor_dismiss(d->executor);
    if (d->executor)
        return 0;
    if (is_refused(f, d, e))
        return -1;
    now_ns = clock_now_ns();
    if (now_ns < d->retry_ns) {
        front_set_timer(f, d->retry_ns);
        return 0;
    }
    x = find_process(d, f, e);
    if (x)
        front_domain_give(d, x);
    else if (e->code != ERROR_NONE)
        front_domain_delay(d, f, e);
    return 0;
}

void front_opening_end_late(struct executor *x)
{
    const struct front_domain *d = x->domain;
    const uint64_t end_ns = (x->useful ? d->leaving_ns : place_since(d)) + OPENING_NS;
    struct error e;

    if (clock_now_ns() < end_ns) {
        front_set_timer(x->front, end_ns);
    } else if (!atomic_load(&x->gone)) {
        error_set(&e, ERROR_DEVICE_LOST, "the driver took too long to open what a job needs, while others waited");
        x->abandoned = true;
        front_kill(x, &e);
    }
}

void front_spares_keep(struct front *f)
{
    const uint64_t now_ns = clock_now_ns();
    unsigned n = 0;
    struct error e;

    list_each (struct executor, x, link, &f->executors) {
        if (!x->ready && !atomic_load(&x->gone))
            return; /* a process is starting */
        n += !x->domain && !x->common && !x->stop;
    }
    if (n >= f->config.executors_spares || !f->common->executor || f->ending)
        return;
    if (now_ns < f->last_start_ns + SPARE_DELAY_NS) {
        front_set_timer(f, f->last_start_ns + SPARE_DELAY_NS);
        return;
    }
    if (!has_place(f))
        return;
    f->last_start_ns = now_ns;
    front_executor_start(f, false, -1, &e);
}

#define LAST_CALLS_NS UINT64_C(10000000000) /* longest wait for calls that are under way at the daemon's end */

void front_executors_end(struct front *f)
{
    const uint64_t until_ns = clock_now_ns() + LAST_CALLS_NS;
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000), .tv_nsec = (long)(until_ns % 1000000000)};

    list_each (struct executor, x, link, &f->executors) {
        if (x->common && x->ready)
            front_executor_stop(x);
        else
            front_abort(x); /* the keeper may be waiting for it for a long time */
    }
    while (!list_empty(&f->executors)) {
        struct executor *x = list_entry(list_first(&f->executors), struct executor, link);

        pthread_mutex_lock(&f->lock);
        while (!x->ended && clock_now_ns() < until_ns)
            pthread_cond_timedwait(&f->changed, &f->lock, &until);
        pthread_mutex_unlock(&f->lock);
        front_abort(x);
        front_domain_lose(x);
        front_executor_join(x);
        front_executor_free(x);
    }
}

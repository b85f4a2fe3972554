/* Domains, the work that waits for their executors, and which executors there are. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "executor/front.h"
#include "util/clock.h"
#include "util/log.h"

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

/* Time that a domain keeps its place while objects that its job needs are opened, and others wait for one. */
#define OPENING_NS UINT64_C(10000000000)
#define LINGER_NS  UINT64_C(10000000000) /* time that the process that counts stays after its last job */

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
    else if (d->key != DOMAIN_COMMON && d->failures >= DOMAIN_FAILURES_MAX && clock_now_ns() < d->retry_ns)
        *e = d->error;
    else if (f->closing || (f->ending && d->key != DOMAIN_COMMON))
        error_set(e, ERROR_DEVICE_LOST, "the daemon ends");
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

static void give_work(struct front_domain *d)
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

static void refuse_work(struct front *f, struct front_domain *d, const struct error *why)
{
    pthread_mutex_lock(&f->lock);
    list_each (struct given, g, link, &d->work) {
        g->refused = true;
        g->why = *why;
        list_remove(&g->link);
        list_append(&f->worked, &g->link);
    }
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

/* Tells whether a job or other work waits for the domain's executor. */
static bool is_awaited(struct front *f, const struct front_domain *d)
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
        if (other == d || !other->room_ns || other->room_ns >= d->room_ns || !is_awaited(f, other))
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

static void note_delay(struct front_domain *d, struct front *f, const struct error *why)
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
    const int counts = front_privilege_device(f, d);
    struct executor *x = d->key == DOMAIN_COMMON || counts >= 0 ? NULL : find_spare(f);

    e->code = ERROR_NONE;
    if (counts >= 0 && !front_privilege_is_free(f))
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

    if (d->executor && front_privilege_is_spent(f, d))
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
        note_delay(d, f, e);
    return 0;
}

/* A device can be gone, or renumbered, since the first executor started. */
static bool has_same_devices(const struct front *f, const struct executor *x)
{
    bool same = x->n_described == f->n_devices;

    for (unsigned i = 0; same && i < f->n_devices; i++) {
        const struct front_device *d = f->devices[i];

        same = !strncmp(d->base.info.uuid, x->region->devices[d->number].info.uuid, sizeof(d->base.info.uuid));
    }
    return same;
}

static void note_ready(struct executor *x)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = x};
    struct front *f = x->front;
    struct error e = {.code = ERROR_NONE};

    x->ready = true;
    x->ready_ns = clock_now_ns();
    if (epoll_ctl(f->watch, EPOLL_CTL_ADD, x->bell, &event) < 0 ||
        epoll_ctl(f->watch, EPOLL_CTL_ADD, x->control, &event) < 0)
        error_set(&e, ERROR_DEVICE_LOST, "the system watches no more descriptors, so the executor cannot be heard");
    else if (f->n_devices && !has_same_devices(f, x))
        error_set(
            &e, ERROR_DEVICE_LOST,
            "a GPU has gone: the driver finds other devices than when the daemon started (nvidia-smi shows which)");
    if (e.code != ERROR_NONE) {
        front_kill(x, &e);
        return;
    }
    if (!x->domain)
        return;
    pthread_mutex_lock(&f->lock);
    if (x->state == PROCESS_SPARE)
        x->state = PROCESS_SERVING;
    x->domain->failures = 0;
    x->domain->error.code = ERROR_NONE;
    x->domain->wanted = false;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    front_advance_domain(f, x->domain);
}

static void note_end(struct executor *x)
{
    struct front *f = x->front;
    struct front_domain *d = x->domain;
    const bool started = x->start_error.code == ERROR_NONE;
    struct list streams, *node;

    if (!started && !f->ending) {
        log_error("executor_start", "common=%d why=\"%s\"", x->common, x->start_error.message);
        if (d)
            note_delay(d, f, &x->start_error);
        else /* a spare: not at once again */
            f->last_start_ns = clock_now_ns() + 10000000000U;
    } else if (started && d) {
        f->counts.replaced++;
    }
    if (started && d && !x->useful && !x->broke && !x->culprit && !x->stop)
        note_delay(d, f, &x->why); /* the executor ended before it did anything: so may the next one */
    front_take_opened(f);          /* the keeper has ended: no stream of the executor has something opened any more */
    front_recover(x, &streams);
    front_domain_lose(x);
    front_executor_join(x);
    front_hold_end(x);
    front_objects_forget(f, x->bit);
    front_programs_forget(f, x->bit);
    front_executor_free(x);
    while ((node = list_pop(&streams)))
        front_advance(list_entry(node, struct front_stream, blocked_link));
    if (d)
        front_advance_domain(f, d);
}

static bool is_over(const struct front *f, const struct front_domain *d)
{
    return d->key != DOMAIN_COMMON && !d->streams && !d->codes && !d->n_work && !d->wanted && !front_is_blocked(f, d);
}

/* Users who profile do so again: the executor that was made to count stays for a while. */
static bool lingers(const struct front_domain *d)
{
    const struct executor *x = d->executor;

    if (!domain_is_profiling(d->key) || x->counts >= 0 || !x->useful || clock_now_ns() >= x->used_ns + LINGER_NS)
        return false;
    front_set_timer(x->front, x->used_ns + LINGER_NS);
    return true;
}

/* Whether a domain waits for a place. */
static bool is_room_wanted(struct front *f)
{
    list_each (struct front_domain, d, link, &f->domains)
        if (d->room_ns && is_awaited(f, d))
            return true;
    return false;
}

/* Ends the executor, which is to leave, where it opens objects for too long. */
static void end_late_opening(struct executor *x)
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

static void look_at_domain(struct front *f, struct front_domain *d)
{
    struct executor *x;
    struct error e;
    bool wanted, over;

    pthread_mutex_lock(&f->lock);
    over = is_over(f, d);
    pthread_mutex_unlock(&f->lock);
    wanted = d->key == DOMAIN_COMMON || is_awaited(f, d);
    if (over && d->executor && !d->executor->unfinished && domain_is_of_connection(d->key) && !lingers(d))
        front_executor_dismiss(d->executor);
    x = d->executor; /* an executor that has no job any more goes, if it is leaving */
    if (d->leaving_ns && x && x->unfinished && !is_room_wanted(f)) { /* those that waited were cancelled */
        d->leaving_ns = 0;
        front_advance_domain(f, d);
    }
    if (d->leaving_ns && x && x->unfinished) {
        front_end_late(x, NULL, d->leaving_ns, front_longest_ns(f));
        front_set_timer(f, clock_now_ns() + front_longest_ns(f) / 8);
    } else if (d->leaving_ns && x && d->opening) {
        end_late_opening(x);
    } else if (d->leaving_ns && x && !d->n_given) {
        front_executor_dismiss(x);
    }
    if (over && !d->executor) {
        front_turn_drop(f, d);
        pthread_mutex_lock(&f->lock);
        over = is_over(f, d); /* a thread of the pool may have come to need it meanwhile */
        if (over)
            list_remove(&d->link);
        pthread_mutex_unlock(&f->lock);
        if (over)
            free(d);
        return;
    }
    if (!wanted)
        d->room_ns = 0;
    if (wanted && d->executor && !d->leaving_ns)
        give_work(d);
    if (!wanted || d->executor)
        return;
    if (front_domain_serve(d, f, &e) < 0) {
        refuse_work(f, d, &e);
        pthread_mutex_lock(&f->lock);
        d->wanted = false;
        pthread_cond_broadcast(&f->changed);
        pthread_mutex_unlock(&f->lock);
        front_advance_domain(f, d);                 /* the jobs of the domain fail */
    } else if (d->executor && d->executor->ready) { /* a spare */
        give_work(d);
        front_advance_domain(f, d);
    }
}

static void keep_spares(struct front *f)
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

void front_domains_turn(struct front *f)
{
    list_each (struct executor, x, link, &f->executors) {
        bool started, ended;

        pthread_mutex_lock(&f->lock);
        started = x->state != PROCESS_STARTING && x->start_error.code == ERROR_NONE;
        ended = x->ended;
        pthread_mutex_unlock(&f->lock);
        if (started && !x->ready && !ended && !atomic_load(&x->gone))
            note_ready(x);
        if (ended)
            note_end(x);
    }
    if (f->closing)
        return;
    front_domains_take(f);
    f->wants_room = false;
    list_each (struct front_domain, d, link, &f->domains)
        look_at_domain(f, d);
    keep_spares(f);
}

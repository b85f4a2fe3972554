/* Decides which executors there are: starts them, gives spares to domains, ends those without use. Thread: loop. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "executor/front_policy.h"
#include "util/clock.h"
#include "util/log.h"

enum {
    FAILURES_MAX = 6,           /* starts of the common executor in a row, before the devices are given up */
    RETRY_NS = 100000000,       /* doubled with every failure */
    SPARE_DELAY_NS = 300000000, /* a machine makes 3 to 6 contexts a second; others need them more than a spare */
};

#define LINGER_NS UINT64_C(10000000000) /* how long the process that counts stays after its last job */

void front_domain_give(struct front_domain *d, struct executor *x)
{
    struct front *f = x->front;

    list_for_each_safe (node, after, &f->busy) {
        struct front_stream *s = list_entry(node, struct front_stream, link);

        if (s->domain == d)
            s->end_ns = 0; /* it was meant for the executor before */
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

    list_for_each_safe (node, after, &f->executors) {
        struct executor *x = list_entry(node, struct executor, link);

        if (x->domain || x->common || x->stop || atomic_load(&x->gone))
            continue;
        if (x->ready)
            return x;
        starting = x;
    }
    return starting;
}

/* No start of the domain's executor for a while. */
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

/* A place for a process that is no spare: one makes room where there are no others. */
static bool take_new_place(struct front *f, struct front_domain *d)
{
    struct executor *spare;

    if (front_place_take(f, d, false))
        return true;
    spare = front_place_is_free(f) ? NULL : find_spare(f);
    if (spare)
        front_executor_stop(spare);
    return false;
}

/* The domain's process, a spare or a new one. NULL: none yet, or *e. */
static struct executor *find_process(struct front_domain *d, struct front *f, struct error *e)
{
    const int counts = front_privilege_device(f, d);
    struct executor *x = d->key == DOMAIN_COMMON || counts >= 0 ? NULL : find_spare(f);

    e->code = ERROR_NONE;
    if (counts >= 0 && (!front_privilege_is_free(f) || !take_new_place(f, d)))
        return NULL;
    if (counts < 0 && d->key != DOMAIN_COMMON && !front_place_take(f, d, x != NULL))
        return NULL;
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
    if (front_is_refused(f, d, e))
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

/* ---- what has changed ---- */

static int watch(struct executor *x, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = x};

    return epoll_ctl(x->front->watch, EPOLL_CTL_ADD, fd, &event);
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

/* Its process has described its devices. */
static void note_ready(struct executor *x)
{
    struct front *f = x->front;
    struct error e;

    x->ready = true;
    x->ready_ns = clock_now_ns();
    e.code = ERROR_NONE;
    if (watch(x, x->bell) < 0 || watch(x, x->control) < 0)
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

/* It ended before it was ready. */
static void note_failure(struct executor *x)
{
    struct front_domain *d = x->domain;
    struct front *f = x->front;

    if (f->ending)
        return;
    log_error("executor_start", "common=%d why=\"%s\"", x->common, x->start_error.message);
    if (!d) {
        f->last_start_ns = clock_now_ns() + 10000000000U; /* a spare: not at once again */
        return;
    }
    note_delay(d, f, &x->start_error);
}

static void note_end(struct executor *x)
{
    struct front *f = x->front;
    struct front_domain *d = x->domain;
    const bool started = x->start_error.code == ERROR_NONE;
    struct list streams, *node;

    if (!started)
        note_failure(x);
    else if (d)
        f->counts.replaced++;
    if (started && d && !x->useful && !x->broke && !x->culprit && !x->stop)
        note_delay(d, f, &x->why); /* it ended before it did anything: the next one may, too */
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

/* Nothing needs it: no job, no code, no work, no thread that waits for it. */
static bool is_over(const struct front *f, const struct front_domain *d)
{
    return d->key != DOMAIN_COMMON && !d->streams && !d->codes && !d->n_work && !d->wanted && !front_is_blocked(f, d);
}

/* Unless a thread of the pool has come to need the domain meanwhile. */
static void forget(struct front *f, struct front_domain *d)
{
    bool over;

    front_turn_drop(f, d);
    pthread_mutex_lock(&f->lock);
    over = is_over(f, d);
    if (over)
        list_remove(&d->link);
    pthread_mutex_unlock(&f->lock);
    if (over)
        free(d);
}

/* The one who profiles does so again: what was made to count stays for a while. */
static bool lingers(const struct front_domain *d)
{
    const struct executor *x = d->executor;

    if (!domain_is_profiling(d->key) || x->counts >= 0 || !x->useful || clock_now_ns() >= x->used_ns + LINGER_NS)
        return false;
    front_set_timer(x->front, x->used_ns + LINGER_NS);
    return true;
}

static void look_at_domain(struct front *f, struct front_domain *d)
{
    struct error e;
    bool wanted, over;

    pthread_mutex_lock(&f->lock);
    over = is_over(f, d);
    wanted = d->wanted || !list_empty(&d->work) || front_is_blocked(f, d) || d->key == DOMAIN_COMMON;
    pthread_mutex_unlock(&f->lock);
    if (over && d->executor && !d->executor->unfinished && domain_is_of_connection(d->key) && !lingers(d))
        front_executor_dismiss(d->executor);
    front_place_leave(d);
    if (over && !d->executor) {
        forget(f, d);
        return;
    }
    if (!wanted)
        d->room_ns = 0;
    if (wanted && d->executor && !d->leaving_ns)
        front_work_give(d);
    if (!wanted || d->executor)
        return;
    if (front_domain_serve(d, f, &e) < 0) {
        front_work_refuse(f, d, &e);
        pthread_mutex_lock(&f->lock);
        d->wanted = false;
        pthread_cond_broadcast(&f->changed);
        pthread_mutex_unlock(&f->lock);
        front_advance_domain(f, d);                 /* its jobs fail */
    } else if (d->executor && d->executor->ready) { /* a spare */
        front_work_give(d);
        front_advance_domain(f, d);
    }
}

/* Spares are made when nobody else waits for an executor. */
static void keep_spares(struct front *f)
{
    const uint64_t now_ns = clock_now_ns();
    unsigned n = 0;
    struct error e;

    list_for_each_safe (node, after, &f->executors) {
        const struct executor *x = list_entry(node, struct executor, link);

        if (!x->ready && !atomic_load(&x->gone))
            return; /* one starts */
        n += !x->domain && !x->common && !x->stop;
    }
    if (n >= f->config.executors_spares || !f->common->executor || f->ending)
        return;
    if (now_ns < f->last_start_ns + SPARE_DELAY_NS) {
        front_set_timer(f, f->last_start_ns + SPARE_DELAY_NS);
        return;
    }
    if (!front_place_is_free(f))
        return;
    f->last_start_ns = now_ns;
    front_executor_start(f, false, -1, &e);
}

void front_domains_turn(struct front *f)
{
    list_for_each_safe (node, after, &f->executors) {
        struct executor *x = list_entry(node, struct executor, link);
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
    list_for_each_safe (node, after, &f->domains) {
        look_at_domain(f, list_entry(node, struct front_domain, link));
    }
    keep_spares(f);
}

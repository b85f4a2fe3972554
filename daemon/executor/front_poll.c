/* The front's part of the loop: the backend's poll() and arm(). They ask each part of the front in turn what has
 * changed, and have streams go on; no part calls them. Thread: loop. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "executor/front.h"
#include "util/clock.h"
#include "util/log.h"

/* ---- executors that have come or gone, and their domains ---- */

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
    if (atomic_load(&x->broken)) /* a call may have failed already */
        front_check(x);
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
            front_domain_delay(d, f, &x->start_error);
        else /* a spare: not at once again */
            f->last_start_ns = clock_now_ns() + 10000000000U;
    } else if (started && d) {
        f->counts.replaced++;
    }
    if (started && d && !x->useful && !x->broke && !x->culprit && !x->stop)
        front_domain_delay(d, f, &x->why); /* the executor ended before it did anything: so may the next one */
    front_take_opened(f); /* the keeper has ended: no stream of the executor has something opened any more */
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

/* Whether a domain waits for a place. */
static bool is_room_wanted(struct front *f)
{
    list_each (struct front_domain, d, link, &f->domains)
        if (d->room_ns && front_domain_is_awaited(f, d))
            return true;
    return false;
}

static void look_at_domain(struct front *f, struct front_domain *d)
{
    struct executor *x;
    struct error e;
    bool wanted, over;

    pthread_mutex_lock(&f->lock);
    over = is_over(f, d);
    pthread_mutex_unlock(&f->lock);
    wanted = d->key == DOMAIN_COMMON || front_domain_is_awaited(f, d);
    if (over && d->executor && !d->executor->unfinished && domain_is_of_connection(d->key) && !front_domain_lingers(d))
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
        front_opening_end_late(x);
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
        front_domain_give_work(d);
    if (!wanted || d->executor)
        return;
    if (front_domain_serve(d, f, &e) < 0) {
        front_domain_refuse(f, d, &e);
        front_advance_domain(f, d);                 /* the jobs of the domain fail */
    } else if (d->executor && d->executor->ready) { /* a spare */
        front_domain_give_work(d);
        front_advance_domain(f, d);
    }
}

static void turn_domains(struct front *f)
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
    front_spares_keep(f);
}

/* ---- the loop's entries ---- */

/* Copies how far the oldest job of each stream is, so that the watchdog sees whether it goes on. */
static void note_progress(struct front *f)
{
    list_each (struct front_stream, s, link, &f->busy) {
        const struct front_job *own = front_first_of(s);
        const unsigned ended = own ? atomic_load_explicit(&s->on->region->ended[own->slot], memory_order_relaxed) : 0;

        /* The number only grows, up to the executions that there are: else a job that hangs could look alive for ever.
         */
        if (own && ended > own->job->ended && ended <= own->job->warmup + own->job->repeat)
            own->job->ended = ended;
    }
}

/* Advances streams whose domain has its turn on their GPU; turn_gpus() advances the others. */
static void advance_blocked(const struct executor *x)
{
    const struct front *f = x->front;

    for (unsigned i = 0; x->domain && i < f->n_devices; i++) {
        const struct front_turn *turn = &x->domain->turns[i];

        if (!list_empty(&turn->blocked) && (x->common || turn->has))
            front_advance_on(x->domain, f->devices[i]);
    }
}

static void poll_executor(struct executor *x, struct backend_device *device)
{
    enum { POLLS_STRETCHED = 1000 };

    front_take_records(x);
    if (x->unfinished && atomic_load_explicit(&x->region->issuing, memory_order_relaxed) &&
        x->stretched++ < POLLS_STRETCHED)
        device->active = true;
    if (!list_empty(&x->overflow)) {
        front_send_overflow(x);
        if (list_empty(&x->overflow) && x->domain) /* also streams that have not asked for a turn yet */
            front_advance_domain(x->front, x->domain);
    }
    advance_blocked(x);
}

static void look_after(struct front *f)
{
    enum { AT_ONCE = 16, RINGS_MAX = 10000 };
    struct epoll_event events[AT_ONCE];
    const int n = epoll_wait(f->watch, events, AT_ONCE, 0);

    for (int i = 0; i < n; i++) {
        struct executor *x = events[i].data.ptr; /* NULL: the timer */

        if (x)
            front_check(x);
        if (x && ++x->rings == RINGS_MAX && !atomic_load(&x->gone))
            front_break_off(x, "rings for nothing");
    }
    note_progress(f);
    if (!f->slept)
        return;
    f->slept = false;
    list_each (struct executor, x, link, &f->executors)
        if (x->ready)
            atomic_store(&x->region->daemon_sleeps, 0);
}

/* Whether the timer is due. Disarms it then: its descriptor would stay readable, and the loop would never sleep. */
static bool read_timer(struct front *f)
{
    const struct itimerspec never = {.it_value = {.tv_sec = 0}};
    uint64_t times;

    if (f->timer_ns == UINT64_MAX || clock_now_ns() < f->timer_ns)
        return false;
    f->timer_ns = UINT64_MAX;
    timerfd_settime(f->timer, 0, &never, NULL);
    return read(f->timer, &times, sizeof(times)) > 0 || errno == EAGAIN;
}

/* Has streams go on that holds, ends of holds and new turns let go on. */
static void turn_gpus(struct front *f)
{
    bool released = false;
    struct front_domain *d;

    for (unsigned i = 0; i < f->n_devices; i++) {
        released = front_hold_turn(f->devices[i]) || released;
        d = front_hold_next(f->devices[i]);
        if (d)
            front_advance_on(d, f->devices[i]);
    }
    if (released)
        list_each (struct front_domain, each, link, &f->domains)
            front_advance_domain(f, each);
    for (unsigned i = 0; i < f->n_devices; i++) {
        front_turns_turn(f->devices[i]);
        while ((d = front_turn_next(f->devices[i])))
            front_advance_on(d, f->devices[i]);
    }
}

static void turn(struct front *f)
{
    const bool due = read_timer(f);
    struct list failed, *node;

    if (atomic_exchange(&f->news, false) || due) {
        list_each (struct executor, x, link, &f->executors)
            if (atomic_load(&x->broken)) /* a thread tells of a call that failed on its way */
                front_check(x);
        front_take_opened(f);
        turn_domains(f);
        front_work_done(f);
    }
    turn_gpus(f);
    front_deadlines_turn(f);
    /* Set before jobs end: their errors say whether the daemon goes on. */
    if (f->lost.code != ERROR_NONE)
        for (unsigned i = 0; i < f->n_devices; i++)
            f->devices[i]->base.lost = true;
    list_take(&failed, &f->failed);
    while ((node = list_pop(&failed))) {
        f->unfinished--;
        front_job_at(node)->done(front_job_at(node));
    }
}

unsigned front_poll(struct backend_device *device)
{
    enum { POLLS_A_LOOK = 4096 };
    struct front *f = front_device(device)->front;

    if (f->slept || !f->unfinished || ++f->polls % POLLS_A_LOOK == 0)
        look_after(f);
    list_each (struct executor, x, link, &f->executors) {
        if (x->ready && !atomic_load_explicit(&x->gone, memory_order_relaxed))
            poll_executor(x, device);
    }
    if (atomic_load_explicit(&f->news, memory_order_relaxed) || f->timer_ns != UINT64_MAX || !list_empty(&f->failed))
        turn(f);
    return f->unfinished;
}

enum { STREAMS_LOOKED_AT = 16 }; /* streams to check for jobs that end soon: bounded, so that a look is short */

static const struct wait_window *first_window(const struct front_stream *s)
{
    return s->sent ? &front_job_at(list_first(&s->jobs))->window : NULL;
}

bool front_ends_soon(const struct backend_device *device, uint64_t now_ns)
{
    const struct front *f = ((const struct front_device *)(const void *)device)->front;
    unsigned n = 0;

    list_each (struct front_stream, s, link, &f->busy) {
        const struct wait_window *w = first_window(s);

        if (w && wait_is_known(w) && wait_polls(w, now_ns))
            return true;
        if (++n == STREAMS_LOOKED_AT)
            break;
    }
    return false;
}

static void arm_for_windows(struct front *f)
{
    const uint64_t now_ns = clock_now_ns();
    uint64_t next_ns = UINT64_MAX;
    unsigned n = 0;

    list_each (struct front_stream, s, link, &f->busy) {
        const struct wait_window *w = first_window(s);

        if (w && wait_sleeps_first(w, now_ns) && wait_sleep_end(w, now_ns) < next_ns)
            next_ns = wait_sleep_end(w, now_ns);
        if (++n == STREAMS_LOOKED_AT)
            break;
    }
    front_set_timer(f, next_ns);
}

void front_arm(struct backend_device *device)
{
    struct front *f = front_device(device)->front;
    bool more = atomic_load(&f->news);

    f->slept = true;
    list_each (struct executor, x, link, &f->executors) {
        if (!x->ready || atomic_load_explicit(&x->gone, memory_order_relaxed))
            continue;
        atomic_store(&x->region->wants_room,
                     !list_empty(&x->overflow) || (x->domain && front_is_blocked(f, x->domain)));
        atomic_store(&x->region->daemon_sleeps, 1);
        /* The executor stores its words before it looks at these words. Something may have come since the last look. */
        atomic_thread_fence(memory_order_seq_cst);
        more = ring_has_record(&x->in) || (atomic_load(&x->region->wants_room) && ring_read_on(&x->out)) ||
               (atomic_load(&x->broken) && !x->broken_ns) || more;
    }
    if (more)
        f->host.wake(f->host.context);
    else if (f->config.may_poll)
        arm_for_windows(f);
}

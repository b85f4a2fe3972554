#include "executor.h"

#include <math.h>
#include <stdlib.h>

#include "device.h"
#include "util/clock.h"
#include "util/priority.h"

static const uint64_t SLICE_NS = OWNERS_QUANTUM_NS;

struct backend_stream {
    struct executor *executor;
    struct list jobs;       /* unfinished ones, in order; the first may be running */
    struct lane_pair *pair; /* of the first job */
    struct list link;       /* among what is ready of its owner while it waits for its turn */
    /* Of the first job; touched only by whoever runs it. */
    struct execution execution;
    uint64_t executed; /* 0: not begun */
    unsigned step;     /* of the execution that is under way: what comes next … */
    uint64_t spent_ns; /* … and how long the others took */
};

static void fail(struct backend_job *job, const struct error *e)
{
    job->failed = true;
    job->error = *e;
}

/* Finds out how each step is executed, which may load a library, before anything is timed. */
static int begin(struct executor *x, struct backend_stream *s, struct backend_job *job, struct error *e)
{
    for (unsigned i = 0; i < job->n_steps; i++) {
        if (execute_begin(x->device, &job->steps[i], &s->execution, e) < 0) {
            backend_job_blame(job, i, e);
            return -1;
        }
        job->steps[i].variant_used = s->execution.variant;
    }
    job->started_ns = clock_now_ns();
    return 0;
}

/* When others' turn comes, if there are any. */
struct slice {
    uint64_t end;
    const atomic_uint *waiting; /* how many streams; NULL: nobody can */
};

static bool slice_is_over(const struct slice *slice)
{
    return slice->waiting && atomic_load_explicit(slice->waiting, memory_order_relaxed) > 0 &&
           clock_now_ns() >= slice->end;
}

/* One step; what of it was not begun when the job is cancelled is left out. */
static int execute_step(struct executor *x, const struct backend_stream *s, const struct backend_job *job,
                        const struct seat *seat, const struct backend_step *step, struct error *e)
{
    int r;

    pool_watch(seat->pool, &job->cancel);
    r = execute_once(x->device, seat, step, &s->execution, e);
    pool_watch(seat->pool, NULL);
    if (r == 0 && atomic_load_explicit(&job->cancel, memory_order_relaxed))
        r = error_set(e, ERROR_CANCELLED, "cancelled while it ran");
    return r;
}

/* One execution, or what is left of it: every step, in order, until the last (s->step says so) or until the time slice
 * is over. A single step has its execution from begin(). */
static int execute(struct executor *x, struct backend_stream *s, struct backend_job *job, const struct seat *seat,
                   const struct slice *slice, struct error *e)
{
    const unsigned first = s->step;

    for (; s->step < job->n_steps; s->step++) {
        const unsigned i = s->step;
        struct backend_step *step = &job->steps[i];
        bool stopped = i > 0 && atomic_load_explicit(&job->cancel, memory_order_relaxed);

        if (i > first && !stopped && slice_is_over(slice))
            return 0;
        if (stopped)
            error_set(e, ERROR_CANCELLED, "cancelled before op %u", i);
        if (stopped || (job->n_steps > 1 && execute_begin(x->device, step, &s->execution, e) < 0) ||
            execute_step(x, s, job, seat, step, e) < 0) {
            backend_job_blame(job, i, e);
            return -1;
        }
    }
    return 0;
}

/* Executes until the job has ended (true), or its time slice has and another stream waits (false). `waiting`: how
 * many do; NULL: nobody can. */
static bool run(struct executor *x, struct backend_stream *s, struct backend_job *job, const struct seat *seat,
                const atomic_uint *waiting)
{
    const uint64_t total = (uint64_t)job->warmup + job->repeat;
    const struct slice slice = {.end = waiting ? clock_now_ns() + SLICE_NS : 0, .waiting = waiting};
    struct error e;

    while (s->executed < total) {
        uint64_t start;

        if (atomic_load_explicit(&job->cancel, memory_order_relaxed)) {
            error_set(&e, ERROR_CANCELLED, "cancelled after %llu of %llu executions", (unsigned long long)s->executed,
                      (unsigned long long)total);
            fail(job, &e);
            return true;
        }
        if (s->executed == 0 && s->step == 0 && begin(x, s, job, &e) < 0) {
            fail(job, &e);
            return true;
        }
        start = clock_now_ns();
        if (execute(x, s, job, seat, &slice, &e) < 0) {
            fail(job, &e);
            return true;
        }
        s->spent_ns += clock_now_ns() - start;
        if (s->step < job->n_steps)
            return false;
        if (s->executed++ >= job->warmup && job->samples)
            job->samples[job->n_samples++] = clock_us_between(0, s->spent_ns);
        s->step = 0;
        s->spent_ns = 0;
        if (s->executed < total && slice_is_over(&slice))
            return false;
    }
    return true;
}

static void forget_progress(struct backend_stream *s)
{
    s->executed = s->spent_ns = 0;
    s->step = 0;
}

/* ---- lanes; with the lock held ---- */

static void *lane_main(void *argument);

/* The light lane comes first, since what a heavy one starts is nicer, too. */
static bool start(struct lane *lane)
{
    if (lane->heavy && !start(&list_entry(lane, struct lane_pair, heavy)->light))
        return false;
    if (!lane->started)
        lane->started = pthread_create(&lane->thread, NULL, lane_main, lane) == 0;
    return lane->started;
}

static void make_ready(struct lane *lane, struct backend_stream *s, const struct backend_job *job)
{
    owners_add(&lane->owners, owners_get(&lane->owners, job->owner), &s->link);
    atomic_fetch_add_explicit(&lane->ready_count, 1, memory_order_relaxed);
}

static int open_pair(struct executor *x, struct lane_pair *pair, struct error *e);

/* The owner's; else one that nobody uses; else a new one; else the one with the fewest streams. */
static struct lane_pair *find_pair(struct executor *x, uint64_t owner)
{
    struct lane_pair *found = &x->pairs[0];
    struct error e;

    for (unsigned i = 0; i < x->n_pairs; i++)
        if (x->pairs[i].streams && x->pairs[i].owner == owner)
            return &x->pairs[i];
    for (unsigned i = 0; i < x->n_pairs; i++)
        if (x->pairs[i].streams < found->streams)
            found = &x->pairs[i];
    if (found->streams && x->n_pairs < EXECUTOR_PAIRS && open_pair(x, &x->pairs[x->n_pairs], &e) == 0)
        found = &x->pairs[x->n_pairs++];
    if (!found->streams)
        found->owner = owner;
    return found;
}

/* Gives the stream's first job its turn; where no thread can be had for it, it fails and the next one is tried. True
 * when jobs failed. */
static bool enqueue(struct executor *x, struct backend_stream *s)
{
    bool failed = false;

    for (struct list *node = list_first(&s->jobs); node; node = list_first(&s->jobs)) {
        struct backend_job *job = list_entry(node, struct backend_job, link);
        struct lane_pair *pair = find_pair(x, job->owner);
        struct lane *lane = execute_place(x->device, job) == EXECUTE_HEAVY ? &pair->heavy : &pair->light;
        struct error e;

        if (start(lane)) {
            s->pair = pair;
            pair->streams++;
            make_ready(lane, s, job);
            pthread_cond_signal(&lane->wake);
            return failed;
        }
        error_set(&e, ERROR_OUT_OF_MEMORY, "no thread can be started for the job; raise the limit on tasks");
        fail(job, &e);
        list_remove(node);
        list_append(&x->finished, node);
        failed = true;
    }
    return failed;
}

/* NULL: nothing is ready. */
static struct backend_stream *dequeue(struct lane *lane, struct owner **ret_owner)
{
    struct list *node = owners_next(&lane->owners, ret_owner);

    if (!node)
        return NULL;
    atomic_fetch_sub_explicit(&lane->ready_count, 1, memory_order_relaxed);
    return list_entry(node, struct backend_stream, link);
}

/* The stream's first job has ended; the next one gets its turn. Afterwards the stream may be gone once the lock is. */
static void finish(struct executor *x, struct backend_stream *s, struct backend_job *job)
{
    list_remove(&job->link);
    list_append(&x->finished, &job->link);
    forget_progress(s);
    s->pair->streams--;
    enqueue(x, s);
}

static void notify(const struct executor *x)
{
    if (x->device->host.wake)
        x->device->host.wake(x->device->host.context);
}

static void *lane_main(void *argument)
{
    struct lane *lane = argument;
    struct executor *x = lane->executor;

    pthread_setname_np(pthread_self(), lane->heavy ? "kops-heavy" : "kops-light");
    pool_block_signals();
    if (lane->heavy)
        priority_lower();
    pthread_mutex_lock(&x->lock);
    for (;;) {
        struct backend_stream *s;
        struct backend_job *job;
        struct owner *owner;
        uint64_t began_ns, took_ns;
        bool ended;

        while (!x->stop && !(s = dequeue(lane, &owner)))
            pthread_cond_wait(&lane->wake, &x->lock);
        if (x->stop)
            break;
        job = list_entry(list_first(&s->jobs), struct backend_job, link);
        pthread_mutex_unlock(&x->lock);
        began_ns = lane->clock();
        ended = run(x, s, job, &lane->seat, &lane->ready_count);
        took_ns = lane->clock() - began_ns;
        pthread_mutex_lock(&x->lock);
        owners_charge(owner, took_ns);
        if (!ended) {
            make_ready(lane, s, job);
            continue;
        }
        finish(x, s, job);
        pthread_mutex_unlock(&x->lock);
        notify(x);
        pthread_mutex_lock(&x->lock);
    }
    pthread_mutex_unlock(&x->lock);
    return NULL;
}

/* ---- the loop's side ---- */

static void reset(struct backend_job *job)
{
    list_init(&job->link);
    job->failed = false;
    job->started_ns = 0;
    job->n_samples = 0;
    job->h2d_us = job->d2h_us = NAN;
}

void executor_submit(struct backend_stream *s, struct backend_job *job)
{
    struct executor *x = s->executor;
    bool idle, failed;

    reset(job);
    x->unfinished++;
    pthread_mutex_lock(&x->lock);
    idle = list_empty(&s->jobs);
    if (!idle || execute_place(x->device, job) != EXECUTE_INLINE) {
        list_append(&s->jobs, &job->link);
        failed = idle && enqueue(x, s);
        pthread_mutex_unlock(&x->lock);
        if (failed)
            notify(x);
        return;
    }
    pthread_mutex_unlock(&x->lock);
    run(x, s, job, &x->inline_seat, NULL);
    forget_progress(s);
    pthread_mutex_lock(&x->lock);
    list_append(&x->finished, &job->link);
    pthread_mutex_unlock(&x->lock);
    notify(x);
}

unsigned executor_poll(struct executor *x)
{
    struct list *node;

    for (;;) {
        pthread_mutex_lock(&x->lock);
        node = list_first(&x->finished);
        if (node)
            list_remove(node);
        pthread_mutex_unlock(&x->lock);
        if (!node)
            return x->unfinished;
        x->unfinished--;
        list_entry(node, struct backend_job, link)->done(list_entry(node, struct backend_job, link));
    }
}

int executor_stream_new(struct executor *x, struct backend_stream **ret_stream, struct error *e)
{
    struct backend_stream *s = calloc(1, sizeof(*s));

    if (!s)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a stream");
    s->executor = x;
    list_init(&s->jobs);
    list_init(&s->link);
    *ret_stream = s;
    return 0;
}

void executor_stream_free(struct backend_stream *s)
{
    free(s);
}

/* ---- opening and closing ---- */

static int open_seat(struct seat *seat, unsigned threads, struct error *e)
{
    if (guard_new(&seat->guard, e) < 0)
        return -1;
    return pool_new(threads, &seat->pool, e);
}

static void close_seat(struct seat *seat)
{
    seat->pool = pool_free(seat->pool);
    seat->guard = guard_free(seat->guard);
}

static void init_lane(struct lane *lane, struct executor *x, bool heavy)
{
    /* A single thread may have had to wait for others of the machine, which is no fault of its job. */
    *lane = (struct lane){.executor = x, .heavy = heavy, .clock = heavy ? clock_now_ns : clock_thread_ns};
    pthread_cond_init(&lane->wake, NULL);
    owners_init(&lane->owners);
}

static void close_lane(struct lane *lane)
{
    if (lane->started)
        pthread_join(lane->thread, NULL);
    close_seat(&lane->seat);
    pthread_cond_destroy(&lane->wake);
}

static void close_pair(struct lane_pair *pair)
{
    close_lane(&pair->light);
    close_lane(&pair->heavy);
}

static int open_pair(struct executor *x, struct lane_pair *pair, struct error *e)
{
    *pair = (struct lane_pair){0};
    init_lane(&pair->light, x, false);
    init_lane(&pair->heavy, x, true);
    if (open_seat(&pair->light.seat, 1, e) < 0 || open_seat(&pair->heavy.seat, x->threads, e) < 0) {
        close_pair(pair);
        return -1;
    }
    return 0;
}

int executor_open(struct executor *x, struct host_device *device, unsigned threads, struct error *e)
{
    *x = (struct executor){.device = device, .threads = threads};
    pthread_mutex_init(&x->lock, NULL);
    list_init(&x->finished);
    if (open_seat(&x->inline_seat, 1, e) < 0 || open_pair(x, &x->pairs[0], e) < 0)
        return -1;
    x->n_pairs = 1;
    return 0;
}

void executor_close(struct executor *x)
{
    pthread_mutex_lock(&x->lock);
    x->stop = true;
    for (unsigned i = 0; i < x->n_pairs; i++) {
        pthread_cond_signal(&x->pairs[i].light.wake);
        pthread_cond_signal(&x->pairs[i].heavy.wake);
    }
    pthread_mutex_unlock(&x->lock);
    for (unsigned i = 0; i < x->n_pairs; i++)
        close_pair(&x->pairs[i]);
    close_seat(&x->inline_seat);
    pthread_mutex_destroy(&x->lock);
}

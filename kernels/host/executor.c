/* Executes jobs; owns streams, workers and the time of owners. */
#include "executor.h"

#include <pthread.h>
#include <stdlib.h>

#include "backend/memory.h"
#include "device.h"
#include "gemm.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/process.h"

static const uint64_t SLICE_NS = OWNERS_QUANTUM_NS;

enum {
    INLINE_NS = 4000,         /* handing a job to another thread and back takes longer */
    LIGHT_NS = 30000,         /* several threads do not make a shorter job faster */
    ONE_THREAD = 64 * 64 * 64 /* up to this m·n·k several threads are no faster */
};

/* Where to execute a job: on the loop thread, for a few µs; on one thread; on all threads. */
enum execute_place { EXECUTE_INLINE, EXECUTE_LIGHT, EXECUTE_HEAVY };

/* The progress of a job through its executions and steps. All zeroes: not begun. */
struct progress {
    struct execution execution;
    uint64_t executed;
    unsigned step;     /* the next step of the present execution */
    uint64_t spent_ns; /* time of the steps before it */
};

const char *const *execute_variants(struct host_device *device, const struct op *op, enum dtype dtype)
{
    if (!(op->dtypes & DTYPE_BIT(dtype)))
        return NULL;
    if (op->id == OP_GEMM || op->id == OP_LINEAR || op->id == OP_SCALED_GEMM)
        return device->gemm.variants[dtype];
    return kernels_generic.elementwise[op->id][dtype] ? device->elementwise_variants : NULL;
}

/* Estimates the time of an execution of the step on one thread; *ret_heavy: all threads should share it. */
static double step_cost_ns(const struct step *step, bool *ret_heavy)
{
    const struct plan_gemm *g = &step->plan.gemm;
    double mn, k, ns;

    *ret_heavy = false;
    if (plan_is_empty(&step->plan))
        return 0;
    if (step->plan.kind == PLAN_ELEMENTWISE) {
        ns = elementwise_cost_ns(op_get((enum op_id)step->op), &step->plan);
    } else {
        ns = gemm_cost_ns(&step->plan);
        mn = (double)g->m * (double)g->n;
        k = (double)g->k;
        *ret_heavy = mn * k > ONE_THREAD || ((g->m == 1 || g->n == 1) && mn * k > 8192);
    }
    *ret_heavy = *ret_heavy || ns > LIGHT_NS;
    return ns;
}

static enum execute_place execute_place(struct host_device *device, const struct backend_job *job)
{
    const double executions = (double)job->warmup + job->repeat;
    bool needs_worker = false;
    double ns = 0;

    for (unsigned i = 0; i < job->n_steps; i++) {
        const struct step *step = &job->steps[i];
        bool heavy;

        ns += step_cost_ns(step, &heavy);
        if (heavy)
            return EXECUTE_HEAVY;
        needs_worker = needs_worker ||
                       (step->plan.kind == PLAN_GEMM && !plan_is_empty(&step->plan) && gemm_needs_worker(device, step));
    }
    if (ns * executions > INLINE_NS)
        return EXECUTE_LIGHT;
    return needs_worker ? EXECUTE_LIGHT : EXECUTE_INLINE;
}

/* Resolves the variant and loads its library. Error: unsupported. */
static int execute_begin(struct host_device *device, const struct thread_context *context, const struct step *step,
                         struct execution *ret_execution, struct error *e)
{
    struct execution x = {0};

    if (step->plan.kind == PLAN_GEMM)
        return gemm_begin(device, context, step, ret_execution, e);
    x.variant = step_variant(step) ? step_variant(step)
                                   : execute_variants(device, op_get((enum op_id)step->op), step->plan.dtype)[0];
    x.kernels = kernels_named(x.variant);
    *ret_execution = x;
    return 0;
}

/* Returns the operand's address; NULL for an empty tensor without memory. No other code of this backend uses an
 * operand's reference to memory. */
static unsigned char *operand_address(const struct step_operand *o)
{
    const struct backend_memory *memory = memory_by_id(o->memory);

    return memory ? memory->host + o->offset : NULL;
}

/* Executes a step once. Errors: memory_fault, out_of_memory. */
static int execute_once(struct host_device *device, const struct thread_context *context, const struct step *step,
                        const struct execution *x, struct error *e)
{
    const unsigned operands = step_operands(step);
    unsigned char *pointers[PLAN_MAX_OPERANDS] = {NULL};
    struct guard_range ranges[PLAN_MAX_OPERANDS];
    unsigned n_ranges = 0;
    int result = 0;

    if (plan_is_empty(&step->plan))
        return 0;
    for (unsigned i = 0; i < operands; i++) {
        const uintptr_t start = (uintptr_t)(pointers[i] = operand_address(&step->operands[i]));

        if (start)
            ranges[n_ranges++] = (struct guard_range){start, start + step->operands[i].extent};
    }
    guard_begin(context->guard, ranges, n_ranges);
    if (step->plan.kind == PLAN_GEMM) {
        result = gemm_run(device, context, step, pointers, x, e);
    } else {
        const bool bypass = step->in_place < 0 && step->operands[operands - 1].extent > device->bypass_bytes;

        elementwise_run(context->pool, x->kernels, op_get((enum op_id)step->op), &step->plan, pointers, bypass);
    }
    if (guard_end(context->guard))
        return error_set(e, ERROR_MEMORY_FAULT,
                         "pages of shared memory behind a tensor are gone; do not truncate what is registered");
    return result;
}

/* ---- a job, executed step by step under the SIGBUS guard ---- */

static void progress_fail(struct backend_job *job, const struct error *e)
{
    job->failed = true;
    job->error = *e;
}

/* Decides how a step is executed, which may load a library. */
static int begin_step(struct host_device *device, const struct thread_context *context, struct step *step,
                      struct execution *ret_execution, struct error *e)
{
    if (execute_begin(device, context, step, ret_execution, e) < 0)
        return -1;
    step_copy_variant(step->variant_used, ret_execution->variant);
    return 0;
}

/* Decides how each step is executed before anything is timed. */
static int begin(struct host_device *device, const struct thread_context *context, struct progress *p,
                 struct backend_job *job, struct error *e)
{
    for (unsigned i = 0; i < job->n_steps; i++) {
        if (begin_step(device, context, &job->steps[i], &p->execution, e) < 0) {
            backend_job_blame(job, i, e);
            return -1;
        }
    }
    job->started_ns = clock_now_ns();
    return 0;
}

/* A time slice: how long other streams wait for their turn. */
struct slice {
    uint64_t end;
    const atomic_uint *waiting; /* the number of waiting streams; NULL: none can wait */
};

static bool slice_is_over(const struct slice *slice)
{
    return slice->waiting && atomic_load_explicit(slice->waiting, memory_order_relaxed) > 0 &&
           clock_now_ns() >= slice->end;
}

/* Executes a step. When the job is cancelled, items that have not begun are skipped. */
static int execute_step(struct host_device *device, const struct progress *p, const struct backend_job *job,
                        const struct thread_context *context, const struct step *step, struct error *e)
{
    int r;

    pool_watch(context->pool, &job->cancel);
    r = execute_once(device, context, step, &p->execution, e);
    pool_watch(context->pool, NULL);
    if (r == 0 && atomic_load_explicit(&job->cancel, memory_order_relaxed))
        r = error_set(e, ERROR_CANCELLED, "cancelled while it ran");
    return r;
}

/* Executes the remaining steps of an execution in order, until all are done or the time slice is over; p->step tells. A
 * single step was decided by begin(). */
static int execute(struct host_device *device, struct progress *p, struct backend_job *job,
                   const struct thread_context *context, const struct slice *slice, struct error *e)
{
    const unsigned first = p->step;

    for (; p->step < job->n_steps; p->step++) {
        const unsigned i = p->step;
        struct step *step = &job->steps[i];
        bool stopped = i > 0 && atomic_load_explicit(&job->cancel, memory_order_relaxed);

        if (i > first && !stopped && slice_is_over(slice))
            return 0;
        if (stopped)
            error_set(e, ERROR_CANCELLED, "cancelled before op %u", i);
        if (stopped || (job->n_steps > 1 && begin_step(device, context, step, &p->execution, e) < 0) ||
            execute_step(device, p, job, context, step, e) < 0) {
            backend_job_blame(job, i, e);
            return -1;
        }
    }
    return 0;
}

/* Executes the job. True: the job has ended; false: its time slice is over, and another stream waits. `waiting`: the
 * number of waiting streams; NULL: none can wait. */
static bool progress_run(struct host_device *device, struct progress *p, struct backend_job *job,
                         const struct thread_context *context, const atomic_uint *waiting)
{
    const uint64_t total = (uint64_t)job->warmup + job->repeat;
    const struct slice slice = {.end = waiting ? clock_now_ns() + SLICE_NS : 0, .waiting = waiting};
    struct error e;

    while (p->executed < total) {
        uint64_t start;

        if (atomic_load_explicit(&job->cancel, memory_order_relaxed)) {
            error_set(&e, ERROR_CANCELLED, "cancelled after %llu of %llu executions", (unsigned long long)p->executed,
                      (unsigned long long)total);
            progress_fail(job, &e);
            return true;
        }
        if (p->executed == 0 && p->step == 0 && begin(device, context, p, job, &e) < 0) {
            progress_fail(job, &e);
            return true;
        }
        start = clock_now_ns();
        if (p->executed == job->warmup && !job->gpu_begin_ns)
            job->gpu_begin_ns = start;
        if (execute(device, p, job, context, &slice, &e) < 0) {
            progress_fail(job, &e);
            return true;
        }
        job->gpu_end_ns = clock_now_ns();
        p->spent_ns += job->gpu_end_ns - start;
        if (p->step < job->n_steps)
            return false;
        if (p->executed++ >= job->warmup && job->samples)
            job->samples[job->n_samples++] = clock_us_between(0, p->spent_ns);
        p->step = 0;
        p->spent_ns = 0;
        if (p->executed < total && slice_is_over(&slice))
            return false;
    }
    return true;
}

/* ---- the time of owners ---- */

void owners_init(struct owners *owners)
{
    list_init(&owners->list);
    for (unsigned i = 0; i < OWNERS_MAX; i++) {
        list_init(&owners->all[i].link);
        list_init(&owners->all[i].ready);
        owners->all[i].credit_ns = OWNERS_QUANTUM_NS;
    }
}

struct owner *owners_get(struct owners *owners, uint64_t number)
{
    return &owners->all[(number * UINT64_C(0x9e3779b97f4a7c15) >> 32) % OWNERS_MAX];
}

/* Moves the owner behind all others, and adds a quantum to its credit. */
static void go_last(struct owners *owners, struct owner *owner)
{
    owner->credit_ns += OWNERS_QUANTUM_NS;
    list_remove(&owner->link);
    list_append(&owners->list, &owner->link);
}

void owners_add(struct owners *owners, struct owner *owner, struct list *node)
{
    list_append(&owner->ready, node);
    if (!list_empty(&owner->link))
        return;
    if (owner->credit_ns > 0)
        list_append(owners->list.next, &owner->link); /* before the first */
    else
        go_last(owners, owner);
}

struct list *owners_next(struct owners *owners, struct owner **ret_owner)
{
    struct owner *owner;
    struct list *node;

    if (list_empty(&owners->list))
        return NULL;
    for (;;) {
        owner = list_entry(list_first(&owners->list), struct owner, link);
        if (owner->credit_ns > 0)
            break;
        go_last(owners, owner);
    }
    node = list_first(&owner->ready);
    list_remove(node);
    if (list_empty(&owner->ready))
        list_remove(&owner->link);
    *ret_owner = owner;
    return node;
}

void owners_charge(struct owner *owner, uint64_t ns)
{
    const uint64_t most = OWNERS_DEBT_MAX_NS;

    owner->credit_ns -= (int64_t)(ns < most ? ns : most);
    if (owner->credit_ns < -(int64_t)most)
        owner->credit_ns = -(int64_t)most;
}

/* ---- streams and workers ---- */

/* A thread that executes jobs, one at a time. */
struct worker {
    struct executor *executor;
    struct thread_context context;
    bool heavy;              /* runs jobs on all processors; else on one thread */
    uint64_t (*clock)(void); /* measures the time that owners are charged */
    pthread_t thread;
    bool started;
    pthread_cond_t wake;
    struct owners owners;    /* ready streams, by `link` */
    atomic_uint ready_count; /* number of ready streams; read without the lock at the end of a time slice */
};

enum { EXECUTOR_PAIRS = 8 };

struct worker_pair {
    struct worker light, heavy;
    uint64_t owner;
    unsigned streams; /* waiting and running streams; 0: any owner may take the pair */
};

struct executor {
    struct host_device *device;
    struct thread_context inline_context;
    struct worker_pair pairs[EXECUTOR_PAIRS];
    unsigned n_pairs; /* opened pairs, at least one */
    unsigned threads; /* threads of a heavy worker */
    pthread_mutex_t lock;
    struct list finished; /* jobs, by their `link`, until poll() */
    bool stop;
    unsigned unfinished; /* submitted jobs before done(); used by the loop alone */
};

struct backend_stream {
    struct executor *executor;
    struct list jobs;         /* unfinished jobs, in order; the first may be running */
    struct worker_pair *pair; /* executes the first job */
    struct list link;         /* among the owner's ready streams, while it waits for its turn */
    struct progress progress; /* progress of the first job; used by the executing thread alone */
};

/* ---- workers; with the lock held ---- */

static void *worker_main(void *argument);

/* The light worker starts first, since threads that a heavy worker starts inherit its lower priority. */
static bool start(struct worker *worker)
{
    if (worker->heavy && !start(&list_entry(worker, struct worker_pair, heavy)->light))
        return false;
    if (!worker->started)
        worker->started = pthread_create(&worker->thread, NULL, worker_main, worker) == 0;
    return worker->started;
}

static void make_ready(struct worker *worker, struct backend_stream *s, const struct backend_job *job)
{
    owners_add(&worker->owners, owners_get(&worker->owners, job->owner), &s->link);
    atomic_fetch_add_explicit(&worker->ready_count, 1, memory_order_relaxed);
}

static int open_pair(struct executor *x, struct worker_pair *pair, struct error *e);

/* Returns the owner's pair; else an unused pair; else a new pair; else the pair with the fewest streams. */
static struct worker_pair *find_pair(struct executor *x, uint64_t owner)
{
    struct worker_pair *found = &x->pairs[0];
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

/* Gives the stream's first job to a worker. If no thread can be started for a job, the job fails and the next one is
 * tried. True: jobs failed. */
static bool enqueue(struct executor *x, struct backend_stream *s)
{
    bool failed = false;

    for (struct list *node = list_first(&s->jobs); node; node = list_first(&s->jobs)) {
        struct backend_job *job = list_entry(node, struct backend_job, link);
        struct worker_pair *pair = find_pair(x, job->owner);
        struct worker *worker = execute_place(x->device, job) == EXECUTE_HEAVY ? &pair->heavy : &pair->light;
        struct error e;

        if (start(worker)) {
            s->pair = pair;
            pair->streams++;
            make_ready(worker, s, job);
            pthread_cond_signal(&worker->wake);
            return failed;
        }
        error_set(&e, ERROR_OUT_OF_MEMORY, "no thread can be started for the job; raise the limit on tasks");
        progress_fail(job, &e);
        list_remove(node);
        list_append(&x->finished, node);
        failed = true;
    }
    return failed;
}

/* Takes the next ready stream; NULL: none. */
static struct backend_stream *dequeue(struct worker *worker, struct owner **ret_owner)
{
    struct list *node = owners_next(&worker->owners, ret_owner);

    if (!node)
        return NULL;
    atomic_fetch_sub_explicit(&worker->ready_count, 1, memory_order_relaxed);
    return list_entry(node, struct backend_stream, link);
}

/* Ends the stream's first job and enqueues the next. Once the caller unlocks, the stream may be gone. */
static void finish(struct executor *x, struct backend_stream *s, struct backend_job *job)
{
    list_remove(&job->link);
    list_append(&x->finished, &job->link);
    s->progress = (struct progress){0};
    s->pair->streams--;
    enqueue(x, s);
}

static void notify(const struct executor *x)
{
    if (x->device->host.wake)
        x->device->host.wake(x->device->host.context);
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct executor *x = worker->executor;

    pthread_setname_np(pthread_self(), worker->heavy ? "kops-heavy" : "kops-light");
    pool_block_signals();
    if (worker->heavy)
        priority_lower();
    pthread_mutex_lock(&x->lock);
    for (;;) {
        struct backend_stream *s;
        struct backend_job *job;
        struct owner *owner;
        uint64_t began_ns, took_ns;
        bool ended;

        while (!x->stop && !(s = dequeue(worker, &owner)))
            pthread_cond_wait(&worker->wake, &x->lock);
        if (x->stop)
            break;
        job = list_entry(list_first(&s->jobs), struct backend_job, link);
        pthread_mutex_unlock(&x->lock);
        began_ns = worker->clock();
        ended = progress_run(x->device, &s->progress, job, &worker->context, &worker->ready_count);
        took_ns = worker->clock() - began_ns;
        pthread_mutex_lock(&x->lock);
        owners_charge(owner, took_ns);
        if (!ended) {
            make_ready(worker, s, job);
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

bool executor_submit(struct backend_stream *s, struct backend_job *job)
{
    struct executor *x = s->executor;
    bool idle, failed;

    list_init(&job->link);
    x->unfinished++;
    pthread_mutex_lock(&x->lock);
    idle = list_empty(&s->jobs);
    if (!idle || execute_place(x->device, job) != EXECUTE_INLINE) {
        list_append(&s->jobs, &job->link);
        failed = idle && enqueue(x, s);
        pthread_mutex_unlock(&x->lock);
        if (failed)
            notify(x);
        return true;
    }
    pthread_mutex_unlock(&x->lock);
    progress_run(x->device, &s->progress, job, &x->inline_context, NULL);
    s->progress = (struct progress){0};
    pthread_mutex_lock(&x->lock);
    list_append(&x->finished, &job->link);
    pthread_mutex_unlock(&x->lock);
    notify(x);
    return true;
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

static int open_context(struct thread_context *context, unsigned threads, struct error *e)
{
    if (guard_new(&context->guard, e) < 0)
        return -1;
    return pool_new(threads, &context->pool, e);
}

static void close_context(struct thread_context *context)
{
    context->pool = pool_free(context->pool);
    context->guard = guard_free(context->guard);
}

static void init_worker(struct worker *worker, struct executor *x, bool heavy)
{
    /* A light worker charges its thread's processor time, without time in which the thread waited for a processor. */
    *worker = (struct worker){.executor = x, .heavy = heavy, .clock = heavy ? clock_now_ns : clock_thread_ns};
    pthread_cond_init(&worker->wake, NULL);
    owners_init(&worker->owners);
}

static void close_worker(struct worker *worker)
{
    if (worker->started)
        pthread_join(worker->thread, NULL);
    close_context(&worker->context);
    pthread_cond_destroy(&worker->wake);
}

static void close_pair(struct worker_pair *pair)
{
    close_worker(&pair->light);
    close_worker(&pair->heavy);
}

static int open_pair(struct executor *x, struct worker_pair *pair, struct error *e)
{
    *pair = (struct worker_pair){0};
    init_worker(&pair->light, x, false);
    init_worker(&pair->heavy, x, true);
    if (open_context(&pair->light.context, 1, e) < 0 || open_context(&pair->heavy.context, x->threads, e) < 0) {
        close_pair(pair);
        return -1;
    }
    return 0;
}

int executor_new(struct host_device *device, unsigned threads, struct executor **ret_executor, struct error *e)
{
    struct executor *x = calloc(1, sizeof(*x));

    if (!x)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the host device");
    x->device = device;
    x->threads = threads;
    pthread_mutex_init(&x->lock, NULL);
    list_init(&x->finished);
    if (open_context(&x->inline_context, 1, e) < 0 || open_pair(x, &x->pairs[0], e) < 0) {
        executor_free(x);
        return -1;
    }
    x->n_pairs = 1;
    *ret_executor = x;
    return 0;
}

struct executor *executor_free(struct executor *x)
{
    if (!x)
        return NULL;
    pthread_mutex_lock(&x->lock);
    x->stop = true;
    for (unsigned i = 0; i < x->n_pairs; i++) {
        pthread_cond_signal(&x->pairs[i].light.wake);
        pthread_cond_signal(&x->pairs[i].heavy.wake);
    }
    pthread_mutex_unlock(&x->lock);
    for (unsigned i = 0; i < x->n_pairs; i++)
        close_pair(&x->pairs[i]);
    close_context(&x->inline_context);
    pthread_mutex_destroy(&x->lock);
    free(x);
    return NULL;
}

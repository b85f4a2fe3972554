/* Sees which problems come often, and has them tuned while nothing else is going on. */
#include <stdlib.h>
#include <string.h>

#include "server/exec/exec.h"
#include "server/exec/run.h"
#include "server/observe/observe.h"
#include "server/tune/room.h"
#include "util/clock.h"
#include "util/log.h"

enum {
    SEEN_MAX = 256, /* problems that are counted at one time */
    ALIGNMENT = 256,
    LOOK_MS = 1000, /* without a run, before a tuning begins */
};
/* After a tuning that other work of the device has ended. */
static const uint64_t PAUSE_NS = 30ULL * 1000 * 1000 * 1000;

/* A problem of the runs. */
struct seen {
    struct backend_device *device; /* NULL: a free place */
    struct tuning_request request;
    struct tune_users users;
    uint64_t hash, runs, last_ns;
    bool done; /* the problem was tuned, or cannot be */
};

/* ---- counting ---- */

static void add_number(uint64_t *hash, int64_t number)
{
    const int64_t both[] = {(int64_t)*hash, number};

    *hash = tuning_hash(both, sizeof(both));
}

/* The key of a problem: all that a backend may look at when it chooses. */
static uint64_t hash_of(const struct backend_device *d, const struct step *step, const uint32_t *alignment)
{
    const struct plan_gemm *g = &step->plan.gemm;
    const int64_t numbers[] = {(int64_t)d->index,
                               step->plan.dtype,
                               step->plan.out_dtype,
                               g->m,
                               g->n,
                               g->k,
                               (int64_t)g->batch_count,
                               g->batch_rank,
                               g->high_precision_only,
                               g->in_pieces,
                               g->beta != 0,
                               g->has_bias,
                               g->activation,
                               g->has_scales ? 1 + g->all_in_f32 + 2 * g->fast_sums : 0,
                               g->has_scales ? g->b_dtype : 0};
    uint64_t hash = tuning_hash(numbers, sizeof(numbers));

    for (unsigned i = 0; i < g->batch_rank; i++)
        add_number(&hash, g->batch_shape[i]);
    for (unsigned operand = 0; operand <= plan_gemm_out(g); operand++) {
        const struct plan_matrix *m = plan_gemm_matrix(g, operand);

        add_number(&hash, m->row);
        add_number(&hash, m->column);
        for (unsigned i = 0; i < g->batch_rank; i++)
            add_number(&hash, m->batch[i]);
        add_number(&hash, alignment[operand]);
    }
    return hash;
}

/* The problem's place, or the place of the one that came least lately. */
static struct seen *place(struct tune *t, uint64_t hash)
{
    struct seen *oldest = &t->seen[0];

    for (unsigned i = 0; i < SEEN_MAX; i++) {
        struct seen *s = &t->seen[(hash + i) % SEEN_MAX];

        if (!s->device || s->hash == hash)
            return s;
        if (s->last_ns < oldest->last_ns)
            oldest = s;
    }
    return oldest;
}

static bool is_wanted(const struct server *s, const struct seen *x)
{
    return x->device && !x->done && x->runs >= s->config.tuning_idle_runs;
}

/* The problem's place, which is made; false: no memory. */
static bool see(struct server *server, struct backend_device *d, const struct step *step, const uint32_t *alignment,
                struct seen **ret_seen)
{
    const uint64_t hash = hash_of(d, step, alignment);
    struct tune *t = server->tune;
    struct seen *seen;

    if (!t->seen)
        t->seen = calloc(SEEN_MAX, sizeof(*t->seen));
    if (!t->seen)
        return false;
    seen = place(t, hash);
    if (seen->hash != hash || !seen->device) {
        t->n_wanted -= is_wanted(server, seen);
        *seen = (struct seen){.device = d, .hash = hash};
        seen->request.step = *step;
        memcpy(seen->request.alignment, alignment, sizeof(seen->request.alignment));
    }
    *ret_seen = seen;
    return true;
}

static void count(const struct connection *c, struct backend_device *d, const struct step *step, uint64_t times,
                  uint64_t now_ns)
{
    struct server *server = c->server;
    uint32_t alignment[STEP_MAX_OPERANDS] = {0};
    struct seen *seen;
    bool before;

    for (unsigned i = 0; i < step_operands(step); i++)
        alignment[i] = (uint32_t)(step->operands[i].offset % ALIGNMENT);
    if (!see(server, d, step, alignment, &seen))
        return;
    before = is_wanted(server, seen);
    tune_users_add(&seen->users, c->account->uid);
    seen->runs += times;
    server->tune->n_wanted += !before && is_wanted(server, seen);
    seen->last_ns = now_ns;
}

static void on_ended(const struct request *r, const struct run *run, double device_us, double total_us, uint64_t now_ns)
{
    const struct backend *backend = run->device ? run->device->backend : NULL;

    observe_runs.ended(r, run, device_us, total_us, now_ns);
    if (!r->connection->server->config.tuning_idle_runs || run->failed || !backend || !backend->tunes)
        return;
    for (unsigned i = 0; i < run->commands.n_steps; i++)
        if (backend->tunes(&run->commands.steps[i]))
            count(r->connection, run->device, &run->commands.steps[i], run->job.ended, now_ns);
}

static void on_program_ran(struct server *s, uid_t uid, const struct op_call *call, const struct backend_device *device,
                           const char *variant, uint64_t times)
{
    observe_runs.program_ran(s, uid, call, device, variant, times);
}

static bool wants_times(const struct server *s, uid_t uid)
{
    return observe_runs.wants_times(s, uid);
}

const struct run_observer tune_runs = {on_ended, on_program_ran, wants_times};

/* ---- tuning ---- */

/* Among equals the problem that was run or tuned longest ago comes first. */
static struct seen *most_wanted(const struct server *s)
{
    struct tune *t = s->tune;
    struct seen *best = NULL;

    for (unsigned i = 0; t->seen && i < SEEN_MAX; i++) {
        struct seen *x = &t->seen[i];

        if (is_wanted(s, x) && (!best || x->runs > best->runs || (x->runs == best->runs && x->last_ns < best->last_ns)))
            best = x;
    }
    return best;
}

static void begin(struct server *s, const struct seen *seen)
{
    struct tune_task *task = calloc(1, sizeof(*task));
    struct error e;

    if (!task)
        return;
    task->device = seen->device;
    task->request = seen->request;
    task->users = seen->users;
    task->request.patient = true;
    task->idle = true;
    if (tune_begin(s, task, &e) < 0)
        tune_task_free(task);
}

static void on_timer(uv_timer_t *timer)
{
    struct server *s = timer->data;
    struct tune *t = s->tune;
    const bool still = s->counters.jobs == t->idle_jobs && !exec_jobs(s);
    const struct seen *seen;

    t->idle_jobs = s->counters.jobs;
    if (!still || t->n_tasks || clock_now_ns() < t->idle_next_ns || s->admission.draining || s->admission.stopping)
        return;
    seen = most_wanted(s);
    if (seen)
        begin(s, seen);
    else
        t->n_wanted = 0; /* their places went to others */
}

/* The timer runs only while something waits to be tuned, so an idle daemon sleeps. */
void idle_step(struct server *s)
{
    uv_timer_t *timer = &s->tune->idle;
    const bool wanted = s->tune->n_wanted > 0 && !s->admission.stopping;

    if (wanted == (uv_is_active((const uv_handle_t *)timer) != 0))
        return;
    if (wanted) {
        s->tune->idle_jobs = UINT64_MAX;
        uv_update_time(&s->loop);
        uv_timer_start(timer, on_timer, LOOK_MS, LOOK_MS);
    } else {
        uv_timer_stop(timer);
    }
}

void idle_init(struct server *s)
{
    uv_timer_init(&s->loop, &s->tune->idle);
    s->tune->idle.data = s;
}

void idle_close(struct server *s)
{
    uv_close((uv_handle_t *)&s->tune->idle, NULL);
}

static struct seen *find(struct tune *t, const struct tune_task *task)
{
    const uint64_t hash = hash_of(task->device, &task->request.step, task->request.alignment);

    for (unsigned i = 0; t->seen && i < SEEN_MAX; i++)
        if (t->seen[i].device && t->seen[i].hash == hash)
            return &t->seen[i];
    return NULL;
}

void idle_want(struct server *server, const struct tune_task *task)
{
    struct seen *seen;

    if (!server->config.tuning_idle_runs ||
        !see(server, task->device, &task->request.step, task->request.alignment, &seen))
        return;
    server->tune->n_wanted -= is_wanted(server, seen);
    seen->done = false;
    tune_users_join(&seen->users, &task->users);
    seen->last_ns = clock_now_ns();
    if (seen->runs < server->config.tuning_idle_runs)
        seen->runs = server->config.tuning_idle_runs;
    server->tune->n_wanted += is_wanted(server, seen);
}

void idle_forget(struct server *s)
{
    struct tune *t = s->tune;

    for (unsigned i = 0; t->seen && i < SEEN_MAX; i++) {
        t->seen[i].done = false;
        t->seen[i].runs = 0;
        t->seen[i].users.n = 0;
    }
    t->n_wanted = 0;
}

static void set_done(struct server *s, const struct tune_task *task)
{
    struct seen *seen = find(s->tune, task);

    if (!seen)
        return;
    s->tune->n_wanted -= is_wanted(s, seen);
    seen->done = true;
}

/* An interrupted tuning is tried again later; one that had no time for all candidates goes on, as long
 * as idle tunings find time for some. One that failed otherwise is not tried again. */
void idle_done(struct server *s, const struct tune_task *task)
{
    const bool interrupted = task->failed && task->error.code == ERROR_CANCELLED;
    const bool is_left =
        !task->failed && tuning_tried(&task->result) < task->result.n && (task->result.n_new > 0 || !task->idle);

    if (task->idle && interrupted)
        s->tune->idle_next_ns = clock_now_ns() + PAUSE_NS;
    if (is_left)
        idle_want(s, task);
    else if (!task->failed || (task->idle && !interrupted))
        set_done(s, task);
}

#include "compile/compiler_internal.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compile/helper.h"
#include "util/log.h"

enum { FIRST_DELAY_MS = 100, TOLERATED_DELAY_MS = 1000, MAX_DELAY_MS = 30000, MAX_SPARES = 8, SPARES_KEPT_MS = 30000 };

/* Processes that may end over one source, and helpers that may take its process along. */
enum { MAX_ENDED = 2, MAX_LOST = 8 };

static void handle_closed(uv_handle_t *handle)
{
    struct compiler *c = handle->data;

    c->handles--;
    compiler_let_go(c);
}

void compiler_let_go(struct compiler *c)
{
    if (!c->closing || c->handles || !list_empty(&c->processes) || !list_empty(&c->forkers))
        return;
    if (c->closed)
        c->closed(c->closed_context);
    free(c->user);
    free(c->binary);
    free(c);
}

static void look(struct compiler *c, const struct compiler_config *config)
{
    if (toolkit_find(config->nvrtc, config->include, &c->place, &c->why) < 0 ||
        (config->sandbox == COMPILER_SANDBOX_REQUIRED && !sandbox_available(&c->why)))
        c->unusable = true;
    snprintf(c->name, sizeof(c->name), "%s", c->place.name);
    if (c->unusable)
        log_info("compiler", "usable=no why=\"%s\"", c->why.message);
    else
        log_info("compiler", "name=\"%s\" path=%s", c->name, c->place.nvrtc);
}

static void on_kick(uv_timer_t *timer)
{
    compiler_schedule(timer->data);
}

struct compiler *compiler_new(uv_loop_t *loop, const struct compiler_config *config, struct error *e)
{
    struct compiler *c = calloc(1, sizeof(*c));
    cpu_set_t cores;

    error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the compiler");
    if (!c)
        return NULL;
    c->loop = loop;
    c->user = strdup(config->user && *config->user ? config->user : "nobody");
    c->binary = strdup(config->binary ? config->binary : "/proc/self/exe");
    if (!c->user || !c->binary)
        goto free_texts;
    look(c, config);
    if (!c->unusable && toolkit_add_trees(config->include_extra, &c->place, e) < 0)
        goto free_texts;
    c->sandbox = config->sandbox;
    c->helpers = config->helpers ? config->helpers : 1;
    c->memory_mib = config->memory_mib ? config->memory_mib : 1;
    c->time_s = config->time_s ? config->time_s : 1;
    c->keep_s = config->keep_s;
    /* A machine of more cores than the set has room for is asked in another way. */
    c->cores = sched_getaffinity(0, sizeof(cores), &cores) < 0 ? (unsigned)sysconf(_SC_NPROCESSORS_ONLN)
                                                               : (unsigned)CPU_COUNT(&cores);
    c->spares = 1;
    c->alone = config->alone;
    list_init(&c->waiting);
    list_init(&c->processes);
    list_init(&c->forkers);
    uv_timer_init(loop, &c->idle);
    uv_timer_init(loop, &c->kick);
    c->idle.data = c->kick.data = c;
    c->handles = 2;
    return c;

free_texts:
    free(c->user);
    free(c->binary);
    free(c);
    return NULL;
}

static void job_free(struct compile_job *job)
{
    list_remove(&job->link);
    request_free(&job->request);
    buffer_free(&job->frame);
    free(job);
}

void job_finish(struct compile_job *job, struct compiled *compiled, const struct error *e,
                const struct compile_failure *failure)
{
    compile_done *done = job->done;
    void *context = job->context;

    job_free(job);
    done(context, compiled, e, failure);
}

/* Fails the jobs that wait, or those of them that are broken. */
static void fail_waiting(struct compiler *c, const struct error *why, bool broken_only)
{
    const struct error e = *why; /* done() may change *why, and the list */
    struct list *node;

    for (node = c->waiting.next; node != &c->waiting; node = node->next) {
        struct compile_job *job = list_entry(node, struct compile_job, link);

        if (broken_only && !job->broken)
            continue;
        job_finish(job, NULL, &e, NULL);
        node = &c->waiting;
    }
}

static uint64_t now_ms(struct compiler *c)
{
    uv_update_time(c->loop);
    return uv_now(c->loop);
}

bool job_repeat(struct compile_job *job, bool lost)
{
    struct compiler *c = job->compiler;

    if (c->closing || (lost ? ++job->lost >= MAX_LOST : ++job->ended >= MAX_ENDED))
        return false;
    log_warning("compiler", "repeated=yes lost=%s", lost ? "helper" : "process");
    job->process = NULL;
    list_append(c->waiting.next, &job->link);
    compiler_kick(c);
    return true;
}

void compiler_helper_failed(struct compiler *c, const struct error *e, unsigned tolerated)
{
    const uint64_t now = now_ms(c), longest = c->failures < tolerated ? TOLERATED_DELAY_MS : MAX_DELAY_MS;
    const uint64_t delay = (uint64_t)FIRST_DELAY_MS << (c->failures < 10 ? c->failures : 10);
    char quoted[2 * ERROR_MESSAGE_MAX];

    if (c->closing || (tolerated && now < c->not_before_ms))
        return;
    c->failures++;
    c->not_before_ms = now + (delay < longest ? delay : longest);
    log_warning("compiler", "failed=%u why=%s", c->failures,
                log_quote(quoted, sizeof(quoted), e->message, strlen(e->message)));
    if (c->failures > tolerated) {
        c->why = *e;
        c->keep_warm = false;
        fail_waiting(c, &c->why, false);
    }
    compiler_kick(c);
}

void compiler_helper_works(struct compiler *c)
{
    c->failures = 0;
    c->not_before_ms = 0;
    if (!c->unusable)
        c->why.code = ERROR_NONE;
}

static void on_idle(uv_timer_t *timer)
{
    struct compiler *c = timer->data;

    c->keep_warm = false;
    c->spares = 1;
    list_for_each_safe (node, after, &c->processes)
        process_kill(list_entry(node, struct process, link));
    if (c->forker)
        forker_stop(c->forker);
}

struct census {
    unsigned waiting, starting, warm, busy; /* without paused jobs */
    struct compile_job *first_waiting;
    struct process *first_warm;
};

static struct census count(const struct compiler *c)
{
    struct census n = {0};

    list_for_each_safe (node, after, &c->waiting) {
        struct compile_job *job = list_entry(node, struct compile_job, link);

        n.waiting += !job->paused;
        if (!job->paused && !n.first_waiting)
            n.first_waiting = job;
    }
    list_for_each_safe (node, after, &c->processes) {
        struct process *p = list_entry(node, struct process, link);

        n.starting += p->state == PROCESS_STARTING;
        n.busy += p->state == PROCESS_BUSY && !(p->job && p->job->paused);
        n.warm += p->state == PROCESS_WARM && !p->hung_up;
        if (p->state == PROCESS_WARM && !p->hung_up && !n.first_warm)
            n.first_warm = p;
    }
    return n;
}

static void ask(struct compiler *c, const struct census *n)
{
    unsigned room = c->helpers - n->busy, wanted = n->waiting < room ? n->waiting : room, at_work = n->busy + wanted;
    struct error e;
    int r;

    /* Making a process ready takes about as long as a compile: not from a job that needs the core. */
    if (c->keep_warm && at_work + c->spares < c->cores)
        wanted += c->spares;
    else if (c->keep_warm && (!at_work || at_work < c->cores))
        wanted++;
    for (unsigned have = n->starting + n->warm; have < wanted; have++) {
        if (now_ms(c) < c->not_before_ms) {
            uv_timer_start(&c->kick, on_kick, c->not_before_ms - now_ms(c), 0);
            return;
        }
        if (!c->forker) {
            if (forker_start(c, &e) < 0)
                compiler_helper_failed(c, &e, TOLERATED_NEVER);
            return;
        }
        if (!c->forker->ready || c->forker->hung_up)
            return;
        r = forker_ask(c->forker, &e);
        if (r) {
            compiler_helper_failed(c, &e, r < 0 ? TOLERATED_NEVER : TOLERATED_LOSSES);
            return;
        }
    }
}

void compiler_schedule(struct compiler *c)
{
    struct census n;
    struct error e;

    if (c->closing)
        return;
    if (c->unusable || (c->why.code && now_ms(c) < c->not_before_ms)) {
        fail_waiting(c, &c->why, false);
        return;
    }
    error_set(&e, ERROR_LIMIT_EXCEEDED, "the source with its files is larger than %d MiB, or memory is short",
              COMPILER_MAX_INPUT >> 20);
    fail_waiting(c, &e, true);
    for (n = count(c); n.waiting && n.first_warm && n.busy < c->helpers; n = count(c)) {
        list_remove(&n.first_waiting->link);
        process_assign(n.first_warm, n.first_waiting);
    }
    ask(c, &n);
    if (n.waiting || n.busy || !c->keep_s || !(c->forker || n.warm || n.starting))
        uv_timer_stop(&c->idle);
    else if (!uv_is_active((uv_handle_t *)&c->idle))
        uv_timer_start(&c->idle, on_idle, (uint64_t)c->keep_s * 1000, 0);
}

void compiler_kick(struct compiler *c)
{
    if (!c->closing)
        uv_timer_start(&c->kick, on_kick, 0, 0);
}

/* When sources come faster than processes get warm, more are kept. */
static void adapt_spares(struct compiler *c)
{
    const unsigned most = c->cores / 2 < MAX_SPARES ? c->cores / 2 : MAX_SPARES;
    const uint64_t now = now_ms(c);

    if (!c->forker || !c->forker->ready)
        return;
    if (count(c).warm == 0) {
        c->spares = 2 * c->spares < most ? 2 * c->spares : most;
        c->spares = c->spares < c->helpers ? c->spares : c->helpers;
        c->spares = c->spares ? c->spares : 1;
        c->short_ms = now;
    } else if (now - c->short_ms > SPARES_KEPT_MS && c->spares > 1) {
        c->spares--;
        c->short_ms = now;
    }
}

struct compile_job *compiler_compile(struct compiler *compiler, const struct compile_input *input, compile_done *done,
                                     void *context)
{
    struct compile_job *job = calloc(1, sizeof(*job));

    if (!job)
        return NULL;
    job->compiler = compiler;
    job->done = done;
    job->context = context;
    list_append(&compiler->waiting, &job->link);
    job->broken = request_copy(input, &job->frame, &job->request) < 0;
    compiler->keep_warm = true;
    adapt_spares(compiler);
    compiler_kick(compiler);
    return job;
}

bool compile_job_pause(struct compile_job *job)
{
    if (job->process && !process_pause(job->process))
        return false;
    job->paused = true;
    compiler_kick(job->compiler);
    return true;
}

void compile_job_resume(struct compile_job *job)
{
    job->paused = false;
    if (job->process)
        process_resume(job->process);
    compiler_kick(job->compiler);
}

void compile_job_cancel(struct compile_job *job)
{
    struct compiler *c = job->compiler;

    if (job->process)
        process_kill(job->process);
    job_free(job);
    compiler_kick(c);
}

void compiler_close(struct compiler *compiler, void (*closed)(void *context), void *context)
{
    struct compiler *c = compiler;
    struct error e;

    error_set(&e, ERROR_CANCELLED, "the daemon is stopping");
    c->closing = true;
    c->closed = closed;
    c->closed_context = context;
    fail_waiting(c, &e, false);
    list_for_each_safe (node, after, &c->processes) {
        struct process *p = list_entry(node, struct process, link);
        struct compile_job *job = p->job;

        process_kill(p);
        if (job)
            job_finish(job, NULL, &e, NULL);
    }
    list_for_each_safe (node, after, &c->forkers)
        forker_stop(list_entry(node, struct forker, link));
    uv_close((uv_handle_t *)&c->idle, handle_closed);
    uv_close((uv_handle_t *)&c->kick, handle_closed);
}

const char *compiler_name(const struct compiler *compiler)
{
    return compiler->name;
}

const char *compiler_identity(const struct compiler *compiler)
{
    return compiler->place.identity;
}

const char *compiler_include(const struct compiler *compiler)
{
    return compiler->place.n_includes ? compiler->place.includes[0] : NULL;
}

unsigned compiler_trees(const struct compiler *compiler)
{
    return compiler->place.n_trees;
}

const char *compiler_tree(const struct compiler *compiler, unsigned i)
{
    return compiler->place.includes[compiler->place.n_includes - compiler->place.n_trees + i];
}

bool compiler_usable(const struct compiler *compiler, struct error *e)
{
    if (compiler->why.code && e)
        *e = compiler->why;
    return !compiler->why.code;
}

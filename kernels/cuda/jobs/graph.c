#include "graph.h"

#include <stdlib.h>
#include <string.h>

#include "compute/kernels.h"
#include "compute/work.h"
#include "driver/device.h"
#include "memory/operand.h"
#include "times/records.h"
#include "util/log.h"

enum { GRAPHS_KEPT = 4 /* graphs of a program, one for each set of addresses */ };

struct cuda_graph {
    atomic_uint refs;
    struct cuda_device *device;
    CUgraphExec exec;
    CUdeviceptr workspace; /* cuBLASLt's workspace for this graph alone; 0: none needed */
    CUdeviceptr scratch;   /* copies of operands of this graph alone; 0: none needed */
    uint64_t scratch_bytes;
    const char **variants;
    uint64_t choices;     /* a hash of the tuning's choices for the steps */
    uint32_t generation;  /* the tuning table's, when `choices` was last compared; under the program's lock */
    uint64_t addresses[]; /* STEP_MAX_OPERANDS for each step */
};

struct backend_program {
    pthread_mutex_t lock;
    bool plain;                             /* capturing has failed: steps are launched one by one */
    struct cuda_graph *graphs[GRAPHS_KEPT]; /* references, most recently used first */
};

void cuda_capture_open(struct cuda_capture *c, struct cuda_device *d, const struct cuda_kernels *kernels)
{
    c->device = d;
    c->kernels = kernels;
    c->stream = NULL;
    pthread_mutex_init(&c->lock, NULL);
}

void cuda_capture_close(struct cuda_capture *c)
{
    if (c->stream)
        cuda_on(c->device)->StreamDestroy(c->stream);
    pthread_mutex_destroy(&c->lock);
}

/* Guards *job->program, which the loop and preparing threads set once. */
static pthread_mutex_t programs_lock = PTHREAD_MUTEX_INITIALIZER;

static struct backend_program *program_of(const struct backend_job *job)
{
    struct backend_program *p;

    pthread_mutex_lock(&programs_lock);
    p = *job->program;
    if (!p && (p = calloc(1, sizeof(*p)))) {
        pthread_mutex_init(&p->lock, NULL);
        *job->program = p;
    }
    pthread_mutex_unlock(&programs_lock);
    return p;
}

/* Drivers before 12.3 lose early launches in a graph, so jobs that have some run without. */
static bool begins_early(const struct backend_job *job)
{
    for (unsigned i = 1; i < job->n_steps; i++)
        if (job->steps[i].plan.kind == PLAN_KERNEL && job->steps[i].plan.kernel.pdl)
            return true;
    return false;
}

bool cuda_graph_is_wanted(const struct backend_job *job)
{
    struct backend_program *p;
    bool plain;

    if (!job->program || job->n_steps < 2 || !CUDA_HAS(GraphInstantiateWithFlags) || begins_early(job))
        return false;
    p = program_of(job);
    if (!p)
        return false;
    pthread_mutex_lock(&p->lock);
    plain = p->plain;
    pthread_mutex_unlock(&p->lock);
    return !plain;
}

static bool is_of(const struct cuda_graph *graph, const struct backend_job *job)
{
    for (unsigned i = 0; i < job->n_steps; i++) {
        uint64_t addresses[STEP_MAX_OPERANDS];

        cuda_step_addresses(graph->device, &job->steps[i], addresses);
        if (memcmp(addresses, graph->addresses + (size_t)i * STEP_MAX_OPERANDS, sizeof(addresses)) != 0)
            return false;
    }
    return true;
}

/* Returns a hash of the tuning's choices for the steps; 0: not known without blocking. */
static uint64_t choices_of(const struct cuda_kernels *k, const struct cuda_device *d, const struct backend_job *job,
                           bool may_block)
{
    struct {
        uint64_t step, before;
        struct tuning_choice choice;
    } one = {.before = 1};

    if (!cuda_tuned_is_known(k, may_block))
        return 0;
    for (unsigned i = 0; i < job->n_steps; i++) {
        uint64_t addresses[STEP_MAX_OPERANDS];

        cuda_step_addresses(d, &job->steps[i], addresses);
        one.step = i;
        if (cuda_tuned_find(k, &job->steps[i].plan, addresses, may_block, &one.choice))
            one.before = tuning_hash(&one, sizeof(one));
    }
    return one.before;
}

/* Whether the tuning's choices are still those of the graph. Under the program's lock. */
static bool is_current(struct cuda_graph *graph, const struct cuda_kernels *k, const struct backend_job *job)
{
    const uint32_t generation = tuning_table_generation(k->tuning);

    if (generation != graph->generation && choices_of(k, graph->device, job, false) != graph->choices)
        return false;
    graph->generation = generation;
    return true;
}

/* Under the program's lock. */
static struct cuda_graph *use(struct backend_program *p, unsigned at)
{
    struct cuda_graph *graph = p->graphs[at];

    memmove(&p->graphs[1], &p->graphs[0], at * sizeof(graph));
    p->graphs[0] = graph;
    atomic_fetch_add(&graph->refs, 1);
    return graph;
}

struct cuda_graph *cuda_graph_find(const struct cuda_capture *c, const struct backend_job *job)
{
    struct backend_program *p = program_of(job);
    struct cuda_graph *found = NULL;

    if (!p)
        return NULL;
    pthread_mutex_lock(&p->lock);
    for (unsigned i = 0; i < GRAPHS_KEPT && p->graphs[i] && !found; i++)
        if (p->graphs[i]->device == c->device && is_of(p->graphs[i], job) && is_current(p->graphs[i], c->kernels, job))
            found = use(p, i);
    pthread_mutex_unlock(&p->lock);
    return found;
}

/* ---- making a graph ---- */

static int prepare_works(struct cuda_capture *c, const struct backend_job *job, struct cuda_work *works,
                         struct error *e)
{
    for (unsigned i = 0; i < job->n_steps; i++) {
        works[i].plan = &job->steps[i].plan;
        cuda_step_addresses(c->device, &job->steps[i], works[i].addresses);
        if (plan_is_empty(works[i].plan))
            continue;
        if (cuda_work_prepare(c->kernels, &job->steps[i], &works[i], e) < 0) {
            backend_job_blame(job, i, e);
            return -1;
        }
    }
    return 0;
}

/* Takes the scratch memory that the steps share. Without it, operands are not copied. */
static int take_scratch(struct cuda_capture *c, const struct backend_job *job, struct cuda_work *works,
                        struct cuda_graph *graph, struct error *e)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < job->n_steps; i++)
        if (works[i].scratch > bytes)
            bytes = works[i].scratch;
    if (!bytes)
        return 0;
    if (cuda_scratch_take(c->device, c->stream, bytes, &graph->scratch, e) == 0) {
        graph->scratch_bytes = bytes;
        return 0;
    }
    for (unsigned i = 0; i < job->n_steps; i++) {
        if (!works[i].repack)
            continue;
        if (step_variant(&job->steps[i]) || cuda_device_is_broken(c->device) ||
            cuda_work_prepare_plain(c->kernels, &job->steps[i], &works[i], e) < 0) {
            backend_job_blame(job, i, e);
            return -1;
        }
    }
    return 0;
}

static int take_memory(struct cuda_capture *c, const struct backend_job *job, struct cuda_work *works,
                       struct cuda_graph *graph, struct error *e)
{
    size_t workspace = 0;

    if (take_scratch(c, job, works, graph, e) < 0)
        return -1;
    for (unsigned i = 0; i < job->n_steps; i++)
        if (works[i].workspace > workspace)
            workspace = works[i].workspace;
    if (workspace && cuda_scratch_alloc(c->device, c->stream, workspace, &graph->workspace, e) < 0)
        return -1;
    return graph->workspace || graph->scratch ? cuda_stream_wait(c->device, c->stream, e) : 0;
}

/* Under the lock. */
static int record(struct cuda_capture *c, struct cuda_graph *graph, const struct backend_job *job,
                  struct cuda_work *works, struct error *e)
{
    const struct cuda_queue queue = {.device = c->device,
                                     .stream = c->stream,
                                     .workspace = graph->workspace,
                                     .scratch = graph->scratch,
                                     .scratch_bytes = graph->scratch_bytes};
    struct cuda_device *d = c->device;
    CUgraph recorded = NULL;
    struct error ignored;
    int r = 0;

    if (CUDA_CALL(d, e, StreamBeginCapture, c->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) < 0)
        return -1;
    for (unsigned i = 0; r == 0 && i < job->n_steps; i++) {
        if (!plan_is_empty(works[i].plan))
            r = cuda_work_issue(&queue, &works[i], e);
        graph->variants[i] = works[i].variant;
    }
    if (CUDA_CALL(d, r < 0 ? &ignored : e, StreamEndCapture, c->stream, &recorded) < 0)
        r = -1;
    if (r == 0)
        r = CUDA_CALL(d, e, GraphInstantiateWithFlags, &graph->exec, recorded, 0);
    if (recorded)
        cuda_on(d)->GraphDestroy(recorded);
    return r;
}

static struct cuda_graph *graph_new(const struct cuda_capture *c, const struct backend_job *job, struct error *e)
{
    struct cuda_device *d = c->device;
    size_t words = (size_t)job->n_steps * STEP_MAX_OPERANDS;
    struct cuda_graph *graph = calloc(1, sizeof(*graph) + words * sizeof(graph->addresses[0]));

    if (graph)
        graph->variants = calloc(job->n_steps, sizeof(*graph->variants));
    if (!graph || !graph->variants) {
        free(graph);
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a graph of %u ops", job->n_steps);
        return NULL;
    }
    atomic_init(&graph->refs, 1);
    graph->device = d;
    for (unsigned i = 0; i < job->n_steps; i++)
        cuda_step_addresses(d, &job->steps[i], graph->addresses + (size_t)i * STEP_MAX_OPERANDS);
    /* Choices are read before the steps are prepared: if one changes in between, the graph is made anew. */
    graph->generation = tuning_table_generation(c->kernels->tuning);
    graph->choices = choices_of(c->kernels, d, job, true);
    return graph;
}

static int capture(struct cuda_capture *c, const struct backend_job *job, struct cuda_graph *graph, struct error *e)
{
    struct cuda_work *works = calloc(job->n_steps, sizeof(*works));
    int r = 0;

    if (!works)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a graph of %u ops", job->n_steps);
    cuda_records_start(); /* must precede the first graph, see records.h */
    pthread_mutex_lock(&c->lock);
    cuda_records_load_begin(false);
    if (!c->stream)
        r = CUDA_CALL(c->device, e, StreamCreate, &c->stream, CU_STREAM_NON_BLOCKING);
    if (r == 0)
        r = prepare_works(c, job, works, e);
    if (r == 0)
        r = take_memory(c, job, works, graph, e);
    if (r == 0)
        r = record(c, graph, job, works, e);
    cuda_records_load_end();
    pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < job->n_steps; i++)
        cuda_work_release(&works[i]);
    free(works);
    return r;
}

/* Stores the graph in place of that with the same addresses, or of the least recently used one. */
static void keep(struct backend_program *p, struct cuda_graph *graph, const struct backend_job *job)
{
    struct cuda_graph *dropped;
    unsigned at = 0;

    pthread_mutex_lock(&p->lock);
    while (at < GRAPHS_KEPT - 1 && p->graphs[at] &&
           !(p->graphs[at]->device == graph->device && is_of(p->graphs[at], job)))
        at++;
    dropped = p->graphs[at];
    p->graphs[at] = graph;
    use(p, at);
    pthread_mutex_unlock(&p->lock);
    cuda_graph_unref(dropped);
}

int cuda_graph_make(struct cuda_capture *c, const struct backend_job *job, struct cuda_graph **ret_graph,
                    struct error *e)
{
    struct backend_program *p = program_of(job);
    struct cuda_device *d = c->device;
    struct cuda_graph *graph = cuda_graph_find(c, job);
    char quoted[300];

    if (graph || !p)
        goto found;
    graph = graph_new(c, job, e);
    if (!graph)
        return -1;
    if (capture(c, job, graph, e) < 0) {
        cuda_graph_unref(graph);
        if (cuda_device_is_broken(d) || e->code == ERROR_OUT_OF_MEMORY)
            return -1;
        log_debug("graph_not_captured", "reason=%s", log_quote(quoted, sizeof(quoted), e->message, strlen(e->message)));
        pthread_mutex_lock(&p->lock);
        p->plain = true;
        pthread_mutex_unlock(&p->lock);
        return 0;
    }
    keep(p, graph, job);
found:
    *ret_graph = graph;
    return 0;
}

/* ---- use and end ---- */

CUgraphExec cuda_graph_exec(const struct cuda_graph *graph)
{
    return graph->exec;
}

void cuda_graph_name_variants(const struct cuda_graph *graph, const struct backend_job *job)
{
    for (unsigned i = 0; i < job->n_steps; i++)
        step_copy_variant(job->steps[i].variant_used, graph->variants[i]);
}

void cuda_graph_unref(struct cuda_graph *graph)
{
    if (!graph || atomic_fetch_sub(&graph->refs, 1) > 1)
        return;
    if (!cuda_device_is_broken(graph->device)) {
        cuda_records_load_begin(true);
        if (graph->exec)
            cuda_on(graph->device)->GraphExecDestroy(graph->exec);
        cuda_records_load_end();
        /* The service stream, since another thread may be capturing on the capture stream. */
        cuda_scratch_free(graph->device, graph->device->service, graph->workspace);
        cuda_scratch_give(graph->device, graph->device->service, graph->scratch, graph->scratch_bytes);
    }
    free(graph->variants);
    free(graph);
}

void cuda_program_free(struct backend_device *base, struct backend_program *program)
{
    struct error ignored;

    cuda_enter(cuda_device(base), &ignored);
    for (unsigned i = 0; i < GRAPHS_KEPT; i++)
        cuda_graph_unref(program->graphs[i]);
    pthread_mutex_destroy(&program->lock);
    free(program);
}

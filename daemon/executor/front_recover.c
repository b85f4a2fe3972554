/* Jobs that end with their executor: which job is at fault, which jobs may be begun anew without harm, and which are
 * lost. Thread: loop. */
#include <stdlib.h>
#include <string.h>

#include "backend/memory.h"
#include "executor/front.h"

/* ---- jobs that are begun anew ----
 *
 * The jobs of a lost executor may have run up to any point. A second run must find the bytes that the first one read:
 * in memory that no job writes, or that an earlier job writes, which is begun anew before. */

enum {
    RANGES_MAX = 2048,
    STEPS_MAX = 1 << 16, /* steps to look at: a bound for the loop. Beyond it no job is begun anew */
    STEPS_FEW = 256,     /* steps of a stream that are always looked at */
};

struct range {
    uint64_t memory; /* see identity() */
    uint64_t start, end;
};

/* Memories of a kind: the first one, and whether there are others. */
struct some {
    uint64_t first; /* 0: none */
    bool more;
};

/* Ranges apart from each other, in order. */
struct ranges {
    struct range list[RANGES_MAX];
    unsigned n;
    bool full;                /* some did not fit */
    struct some vmm, foreign; /* foreign: VMM memory that a client allocated */
};

struct search {
    struct ranges whole;   /* steps so far write every byte of these */
    struct ranges touched; /* steps from here on write into these */
    uint32_t *safe;        /* owned, for each step: operands that it reads, a bit each, which an earlier one writes */
};

/* Shared host memory may be registered several times, with an id each: the file tells. */
static uint64_t identity(const struct step_operand *o)
{
    const struct backend_memory *memory = memory_by_id(o->memory);

    return memory && memory->file ? (uint64_t)1 << 63 | memory->file : o->memory;
}

/* An allocation can be exported, and registered, several times, so foreign memory may be the same as other VMM memory.
 * Memory that the daemon allocated has one id. */
static bool is_foreign(const struct backend_memory *memory)
{
    return memory->kind == MEMORY_CUDA_VMM && !memory->made;
}

static void note(struct some *some, uint64_t memory)
{
    some->more = some->more || (some->first && some->first != memory);
    some->first = some->first ? some->first : memory;
}

/* Whether the operand's bytes may be in another memory of the ranges, too. */
static bool has_alias(const struct ranges *ranges, const struct step_operand *o)
{
    const struct backend_memory *memory = memory_by_id(o->memory);
    const struct some *some = memory && is_foreign(memory) ? &ranges->vmm : &ranges->foreign;

    return memory && memory->kind == MEMORY_CUDA_VMM && (some->more || (some->first && some->first != o->memory));
}

static void clear(struct ranges *ranges)
{
    ranges->n = 0;
    ranges->full = false;
    ranges->vmm = ranges->foreign = (struct some){0};
}

/* The first range of the memory that ends at `start` or later, or the place of one. */
static unsigned find(const struct ranges *ranges, uint64_t memory, uint64_t start)
{
    unsigned low = 0, high = ranges->n;

    while (low < high) {
        const unsigned middle = (low + high) / 2;
        const struct range *r = &ranges->list[middle];

        if (r->memory < memory || (r->memory == memory && r->end < start))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Adds the operand, and joins it with the ranges that it touches. */
static void add(struct ranges *ranges, const struct step_operand *o)
{
    const struct backend_memory *memory = memory_by_id(o->memory);
    struct range new = {.memory = identity(o), .start = o->offset, .end = o->offset + o->extent};
    struct range *list = ranges->list;
    unsigned i, last;

    if (!o->memory || !o->extent)
        return;
    if (memory && memory->kind == MEMORY_CUDA_VMM) {
        note(&ranges->vmm, o->memory);
        if (is_foreign(memory))
            note(&ranges->foreign, o->memory);
    }
    i = last = find(ranges, new.memory, new.start);
    for (; last < ranges->n && list[last].memory == new.memory &&list[last].start <= new.end; last++) {
        new.start = list[last].start < new.start ? list[last].start : new.start;
        new.end = list[last].end > new.end ? list[last].end : new.end;
    }
    if (i == last && ranges->n == RANGES_MAX) {
        ranges->full = true;
        return;
    }
    if (last != i + 1)
        memmove(&list[i + 1], &list[last], (ranges->n - last) * sizeof(list[0]));
    list[i] = new;
    ranges->n += 1 - (last - i);
}

/* The range that has the operand's first byte, or comes next in its memory. NULL: there is none. */
static const struct range *range_of(const struct ranges *ranges, const struct step_operand *o)
{
    const uint64_t memory = identity(o);
    const unsigned i = find(ranges, memory, o->offset + 1);

    return i < ranges->n && ranges->list[i].memory == memory ? &ranges->list[i] : NULL;
}

static bool has_some(const struct ranges *ranges, const struct step_operand *o)
{
    const struct range *r = range_of(ranges, o);

    return ranges->full || has_alias(ranges, o) || (r && r->start < o->offset + o->extent);
}

/* ---- steps ---- */

static unsigned reads(const struct step *step)
{
    return step->plan.kind == PLAN_GEMM && step->plan.gemm.beta != 0 ? step_operands(step) : step->n_inputs;
}

/* Whether the step writes all bytes from its output's first to its last. */
static bool is_dense(const struct step *step, const struct step_operand *out)
{
    const struct plan *p = &step->plan;
    uint64_t n;

    if (p->kind == PLAN_KERNEL)
        return false;
    n = p->kind == PLAN_GEMM ? (uint64_t)p->gemm.m * (uint64_t)p->gemm.n * p->gemm.batch_count : p->elementwise.count;
    return n * dtype_size(p->out_dtype) == out->extent;
}

/* Forwards: operands that the step reads and that an earlier step, which is begun anew (`again`), writes. */
static uint32_t find_safe(struct search *search, const struct step *step, bool again)
{
    uint32_t safe = 0;

    for (unsigned i = 0; i < reads(step); i++) {
        const struct step_operand *o = &step->operands[i];
        const struct range *r = range_of(&search->whole, o);

        if (r && r->start <= o->offset && r->end >= o->offset + o->extent)
            safe |= 1U << i;
    }
    for (unsigned i = step->n_inputs; i < step_operands(step); i++)
        if (again && is_dense(step, &step->operands[i]))
            add(&search->whole, &step->operands[i]);
    return safe;
}

/* Backwards: whether the step reads nothing else that it, or a later step, writes. */
static bool may_repeat(struct search *search, const struct step *step, uint32_t safe)
{
    for (unsigned i = step->n_inputs; i < step_operands(step); i++)
        add(&search->touched, &step->operands[i]);
    if (step->in_place >= 0 && !(safe >> step->in_place & 1))
        return false;
    for (unsigned i = 0; i < reads(step); i++)
        if (!(safe >> i & 1) && step->operands[i].extent && has_some(&search->touched, &step->operands[i]))
            return false;
    return step->plan.kind != PLAN_KERNEL;
}

/* ---- jobs ---- */

static struct front_job *own_of(struct list *node)
{
    return front_job_of(front_job_at(node));
}

/* Whether the job may have begun in the lost executor, which may have said that it had not. */
static bool may_have_run(const struct front_job *own)
{
    return !own->told || own->begun;
}

static unsigned count_steps(const struct front_stream *s)
{
    struct list *node = list_first(&s->jobs);
    unsigned n = 0;

    for (unsigned i = 0; i < s->sent && n <= STEPS_MAX; i++, node = node->next)
        if (may_have_run(own_of(node)))
            n += own_of(node)->job->n_steps;
    return n;
}

/* Clears front_job.again of jobs that may not be begun anew. Returns whether there were any. */
static bool look_at(struct search *search, const struct front_stream *s)
{
    struct list *node = list_first(&s->jobs);
    bool fewer = false;
    unsigned n = 0;

    clear(&search->whole);
    clear(&search->touched);
    for (unsigned i = 0; i < s->sent; i++, node = node->next) {
        const struct front_job *own = own_of(node);

        for (unsigned k = 0; may_have_run(own) && k < own->job->n_steps; k++)
            search->safe[n++] = find_safe(search, &own->job->steps[k], own->again);
    }
    for (unsigned i = 0; i < s->sent; i++) {
        struct front_job *own = own_of(node = node->prev);
        const bool before = own->again;

        for (unsigned k = own->job->n_steps; may_have_run(own) && k > 0; k--)
            own->again = may_repeat(search, &own->job->steps[k - 1], search->safe[--n]) && own->again;
        fewer = fewer || own->again != before;
    }
    return fewer;
}

/* Sets front_job.again of the stream's jobs that the lost executor had. *steps: steps that were looked at so far. */
static void choose_again(struct front_stream *s, const struct front_job *culprit, unsigned *steps)
{
    enum { LOOKS_MAX = 8 };
    const unsigned n = count_steps(s);
    const bool look = n <= STEPS_FEW || *steps + n <= STEPS_MAX;
    struct search *search = look ? calloc(1, sizeof(*search)) : NULL;
    struct list *node = list_first(&s->jobs);
    unsigned looks = 0;

    *steps += look ? n : 0;
    for (unsigned i = 0; i < s->sent; i++, node = node->next)
        own_of(node)->again = own_of(node) != culprit && own_of(node)->job->begun_anew < FRONT_REPEATS_MAX;
    if (search)
        search->safe = calloc(n + 1, sizeof(*search->safe));
    /* Jobs that read the output of one that is not begun anew are looked at once more. */
    while (search && search->safe && looks < LOOKS_MAX && look_at(search, s))
        looks++;
    if (!search || !search->safe || looks == LOOKS_MAX) {
        /* No job that may have run is begun anew. */
        node = list_first(&s->jobs);
        for (unsigned i = 0; i < s->sent; i++, node = node->next)
            own_of(node)->again = own_of(node)->again && !may_have_run(own_of(node));
    }
    if (search)
        free(search->safe);
    free(search);
}

/* ---- who is at fault ---- */

/* Whether the job's word, which the GPU writes behind the work, says that it was done. */
static bool has_signalled(const struct front_job *own)
{
    const struct backend_job *job = own->job;
    const struct backend_memory *page = job->signal.page;

    /* The client can write the word, too. */
    if (own->told || own == own->stream->on->culprit)
        return false;
    return page && page->host &&
           __atomic_load_n((const uint64_t *)(const void *)(page->host + job->signal.offset), __ATOMIC_ACQUIRE) >=
               job->signal.value;
}

static void end_done(struct front_stream *s, struct front_job *own)
{
    struct backend_job *job = own->job;

    job->started_ns = own->submitted_ns;
    job->ended = job->warmup + job->repeat;
    if (job->n_samples != job->repeat)
        job->n_samples = 0;
    front_take_back(own);
    front_end(s, job, NULL);
}

/* Ends the stream's jobs up to the last one that has signalled: they were done. */
static void end_signalled(struct front_stream *s)
{
    struct list *node = list_first(&s->jobs);
    unsigned n = 0;

    for (unsigned i = 1; i <= s->sent; i++, node = node->next)
        if (has_signalled(own_of(node)))
            n = i;
    while (n--)
        end_done(s, front_first_of(s));
}

/* Counts the streams whose first job may have run, and has a kernel of a user, which may be at fault. */
static unsigned count_suspects(const struct executor *x)
{
    unsigned n = 0;

    list_each (struct front_stream, s, on_link, &x->streams) {
        const struct front_job *first = front_first_of(s);

        n += first && front_has_kernel(first->job) && may_have_run(first);
    }
    return n;
}

static void blame_kernel(const struct backend_job *job, struct error *e)
{
    unsigned n = 0, last = 0;

    for (unsigned i = 0; i < job->n_steps; i++)
        if (job->steps[i].plan.kind == PLAN_KERNEL) {
            n++;
            last = i;
        }
    if (n == 1)
        backend_job_blame(job, last, e);
}

static const char *text_detail(const struct error *e, const char *key)
{
    for (unsigned i = 0; i < e->n_details; i++)
        if (e->details[i].is_text && !strcmp(e->details[i].key, key))
            return e->details[i].text;
    return NULL;
}

static void accuse(const struct executor *x, const struct front_job *own, unsigned suspects, struct error *ret)
{
    const struct backend_job *job = own->job;
    const char *driver = own->told ? text_detail(&job->error, "driver") : NULL;

    error_set(ret, ERROR_DEVICE_FAULT, "%s: %s",
              suspects > 1 ? "the kernel, or another one that ran beside it, broke the GPU's context"
                           : "the kernel broke the GPU's context",
              driver ? driver : x->why.message);
    if (driver)
        error_detail_text(ret, "driver", driver);
    if (suspects > 1)
        error_detail_number(ret, "suspects", suspects);
    blame_kernel(job, ret);
}

static void explain(const struct executor *x, const struct front_job *own, bool first, unsigned suspects,
                    struct error *ret)
{
    struct front *f = x->front;
    struct backend_job *job = own->job;

    if (own == x->culprit) {
        *ret = x->why;
        job->forced = ret->code == ERROR_CANCELLED || ret->code == ERROR_JOB_TIMEOUT;
        f->counts.ended_jobs++;
    } else if (first && suspects && front_has_kernel(job)) {
        accuse(x, own, suspects, ret);
        f->counts.faults++;
    } else {
        error_set(ret, ERROR_DEVICE_LOST,
                  "%s, and doing this again might give a wrong result: its outputs are undefined",
                  x->killed ? "the process that did this was killed from outside, for example for want of memory"
                            : "the GPU's context was lost because of other work in it");
    }
}

static void recover_stream(struct executor *x, struct front_stream *s, unsigned suspects, unsigned *steps)
{
    bool first = true, stays = false;
    struct list back, *node;

    choose_again(s, x->culprit, steps);
    list_init(&back);
    for (; (node = list_first(&s->jobs)); first = false) {
        struct backend_job *job = front_job_at(node);
        struct front_job *own = front_job_of(job);
        const bool again = own->again;
        struct error e;

        if (!again)
            explain(x, own, first && may_have_run(own), suspects, &e);
        front_take_back(own);
        stays = stays || again;
        if (!stays) {
            front_end(s, job, &e);
            continue;
        }
        if (again) {
            job->started_ns = 0;
            job->ended = job->n_samples = 0;
            job->begun_anew++;
        } else { /* the job ends after the jobs before it */
            job->failed = true;
            job->error = e;
        }
        list_append(&back, &job->link);
    }
    while (!list_empty(&back)) {
        node = back.prev;
        list_remove(node);
        front_give_back(s, front_job_at(node));
    }
    list_remove(&s->on_link);
    s->on = NULL;
}

void front_recover(struct executor *x, struct list *ret_streams)
{
    unsigned suspects, steps = 0;
    struct list *node;

    front_take_records(x);
    list_each (struct front_stream, s, on_link, &x->streams)
        end_signalled(s);
    suspects = x->culprit || x->abandoned || x->killed ? 0 : count_suspects(x);
    list_init(ret_streams);
    while ((node = list_first(&x->streams))) {
        struct front_stream *s = list_entry(node, struct front_stream, on_link);

        recover_stream(x, s, suspects, &steps);
        list_remove(&s->blocked_link);
        list_append(ret_streams, &s->blocked_link);
    }
}

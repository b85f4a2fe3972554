/* Decides which of the jobs of a lost executor may be begun anew. They may have run, all of them or up to any point. So
 * a second run must find what the first one read: memory that none of them writes, or that an earlier one writes, which
 * is begun anew before. Thread: loop. */
#include <stdlib.h>
#include <string.h>

#include "backend/memory_ids.h"
#include "executor/front_policy.h"

enum {
    RANGES_MAX = 2048,
    STEPS_MAX = 1 << 16, /* looked at; the loop does nothing else meanwhile. Of more, none is begun anew */
    STEPS_FEW = 256      /* of a stream: always looked at */
};

struct range {
    uint64_t memory; /* see identity() */
    uint64_t start, end;
};

/* Which memories of a kind there are: the first one, and whether there are others. */
struct some {
    uint64_t first; /* 0: none */
    bool more;
};

/* Ranges apart from each other, in order. */
struct ranges {
    struct range list[RANGES_MAX];
    unsigned n;
    bool full;                /* there were more */
    struct some vmm, foreign; /* foreign: VMM memory that a client allocated */
};

struct search {
    struct ranges whole;   /* steps so far write every byte of these */
    struct ranges touched; /* steps from here on write into these */
    uint32_t *safe;        /* owned, for each step: operands that it reads, a bit each, which an earlier one writes */
};

/* ---- ranges ---- */

/* Shared host memory may be registered several times, with an id each: its file tells. */
static uint64_t identity(const struct step_operand *o)
{
    const struct backend_memory *memory = memory_by_id(o->memory);

    return memory && memory->file ? (uint64_t)1 << 63 | memory->file : o->memory;
}

/* An allocation can be exported, and registered, several times: nothing tells that foreign memory is not the same as
 * other VMM memory. What the daemon allocated has one id. */
static bool is_foreign(const struct backend_memory *memory)
{
    return memory->kind == MEMORY_CUDA_VMM && !memory->made;
}

static void note(struct some *some, uint64_t memory)
{
    some->more = some->more || (some->first && some->first != memory);
    some->first = some->first ? some->first : memory;
}

static bool has_other(const struct some *some, uint64_t memory)
{
    return some->more || (some->first && some->first != memory);
}

static void note_kind(struct ranges *ranges, const struct step_operand *o)
{
    const struct backend_memory *memory = memory_by_id(o->memory);

    if (!memory || memory->kind != MEMORY_CUDA_VMM)
        return;
    note(&ranges->vmm, o->memory);
    if (is_foreign(memory))
        note(&ranges->foreign, o->memory);
}

/* Whether the operand's bytes may be in another memory of the ranges, too. */
static bool has_alias(const struct ranges *ranges, const struct step_operand *o)
{
    const struct backend_memory *memory = memory_by_id(o->memory);

    if (!memory || memory->kind != MEMORY_CUDA_VMM)
        return false;
    return has_other(is_foreign(memory) ? &ranges->vmm : &ranges->foreign, o->memory);
}

static void clear(struct ranges *ranges)
{
    ranges->n = 0;
    ranges->full = false;
    ranges->vmm = ranges->foreign = (struct some){0};
}

static bool is_before(const struct range *r, uint64_t memory, uint64_t start)
{
    return r->memory < memory || (r->memory == memory && r->end < start);
}

/* The first range of the memory that ends at `start` or later, or the place of one. */
static unsigned find(const struct ranges *ranges, uint64_t memory, uint64_t start)
{
    unsigned low = 0, high = ranges->n;

    while (low < high) {
        const unsigned middle = (low + high) / 2;

        if (is_before(&ranges->list[middle], memory, start))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Adds the operand, as one range with those that it touches. */
static void add(struct ranges *ranges, const struct step_operand *o)
{
    struct range new = {.memory = identity(o), .start = o->offset, .end = o->offset + o->extent};
    struct range *list = ranges->list;
    unsigned i, last;

    if (!o->memory || !o->extent)
        return;
    note_kind(ranges, o);
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

/* The range that has the operand's first byte, or comes next. NULL: there is none in its memory. */
static const struct range *range_of(const struct ranges *ranges, const struct step_operand *o)
{
    const uint64_t memory = identity(o);
    const unsigned i = find(ranges, memory, o->offset + 1);

    return i < ranges->n && ranges->list[i].memory == memory ? &ranges->list[i] : NULL;
}

static bool has_all(const struct ranges *ranges, const struct step_operand *o)
{
    const struct range *r = range_of(ranges, o);

    return r && r->start <= o->offset && r->end >= o->offset + o->extent;
}

static bool has_some(const struct ranges *ranges, const struct step_operand *o)
{
    const struct range *r = range_of(ranges, o);

    return ranges->full || has_alias(ranges, o) || (r && r->start < o->offset + o->extent);
}

/* ---- steps ---- */

/* The operands that the step reads, the first ones. */
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

/* Forwards: what the step reads and an earlier one that is begun anew (`again`) writes. */
static uint32_t find_safe(struct search *search, const struct step *step, bool again)
{
    uint32_t safe = 0;

    for (unsigned i = 0; i < reads(step); i++)
        if (has_all(&search->whole, &step->operands[i]))
            safe |= 1U << i;
    for (unsigned i = step->n_inputs; i < step_operands(step); i++)
        if (again && is_dense(step, &step->operands[i]))
            add(&search->whole, &step->operands[i]);
    return safe;
}

/* Backwards: whether the step reads nothing else that it, or a later one, writes. */
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
    return front_job_of(list_entry(node, struct backend_job, link));
}

static unsigned count_steps(const struct front_stream *s)
{
    struct list *node = list_first(&s->jobs);
    unsigned n = 0;

    for (unsigned i = 0; i < s->sent && n <= STEPS_MAX; i++, node = node->next)
        if (front_may_have_run(own_of(node)))
            n += own_of(node)->job->n_steps;
    return n;
}

/* Takes those from the ones to begin anew that may not be. Returns whether there were any. */
static bool look_at(struct search *search, const struct front_stream *s)
{
    struct list *node = list_first(&s->jobs);
    bool fewer = false;
    unsigned n = 0;

    clear(&search->whole);
    clear(&search->touched);
    for (unsigned i = 0; i < s->sent; i++, node = node->next) {
        const struct front_job *own = own_of(node);

        for (unsigned k = 0; front_may_have_run(own) && k < own->job->n_steps; k++)
            search->safe[n++] = find_safe(search, &own->job->steps[k], own->again);
    }
    for (unsigned i = 0; i < s->sent; i++) {
        struct front_job *own = own_of(node = node->prev);
        const bool before = own->again;

        for (unsigned k = own->job->n_steps; front_may_have_run(own) && k > 0; k--)
            own->again = may_repeat(search, &own->job->steps[k - 1], search->safe[--n]) && own->again;
        fewer = fewer || own->again != before;
    }
    return fewer;
}

/* None that may have run is begun anew. */
static void choose_none(const struct front_stream *s)
{
    struct list *node = list_first(&s->jobs);

    for (unsigned i = 0; i < s->sent; i++, node = node->next)
        own_of(node)->again = own_of(node)->again && !front_may_have_run(own_of(node));
}

void front_choose_again(struct front_stream *s, const struct front_job *culprit, unsigned *steps)
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
    /* What reads the output of one that is not begun anew is looked at once more. */
    while (search && search->safe && looks < LOOKS_MAX && look_at(search, s))
        looks++;
    if (!search || !search->safe || looks == LOOKS_MAX)
        choose_none(s);
    if (search)
        free(search->safe);
    free(search);
}

#include "executor/forecast.h"

#include "backend/memory.h"

static uint64_t mix(uint64_t hash, uint64_t number)
{
    hash = (hash ^ number) * 0x9e3779b97f4a7c15U;
    return hash ^ hash >> 29;
}

static uint64_t mix_gemm(uint64_t hash, const struct plan_gemm *g)
{
    hash = mix(mix(mix(hash, (uint64_t)g->m), (uint64_t)g->n), (uint64_t)g->k);
    return mix(hash, g->batch_count << 3 | (uint64_t)g->in_pieces << 2 | (uint64_t)g->high_precision_only << 1 |
                         (uint64_t)g->has_bias);
}

static uint64_t mix_step(uint64_t hash, const struct step *step)
{
    const struct backend_memory *memory = step_operands(step) ? memory_by_id(step->operands[0].memory) : NULL;
    const struct plan *p = &step->plan;

    hash = mix(hash,
               (uint64_t)step->op << 32 | (uint64_t)p->kind << 16 | (uint64_t)p->dtype << 8 | (uint64_t)p->out_dtype);
    /* Work on host memory is copied first. */
    hash = mix(hash, memory && memory->kind == MEMORY_MEMFD);
    if (p->kind == PLAN_ELEMENTWISE)
        return mix(hash, p->elementwise.count << 1 | p->elementwise.contiguous);
    if (p->kind == PLAN_GEMM)
        return mix_gemm(hash, &p->gemm);
    hash = mix(mix(hash, p->kernel.function), p->kernel.shared_bytes);
    for (unsigned i = 0; i < 3; i++)
        hash = mix(hash, (uint64_t)p->kernel.grid[i] << 32 | p->kernel.block[i]);
    return hash;
}

uint64_t forecast_key(const struct backend_job *job, uint32_t program)
{
    uint64_t hash = mix(job->domain, (uint64_t)program << 32 | job->n_steps);

    for (unsigned i = 0; !program && i < job->n_steps; i++)
        hash = mix_step(hash, &job->steps[i]);
    return hash ? hash : 1;
}

static uint64_t executions(const struct backend_job *job)
{
    return (uint64_t)job->warmup + job->repeat;
}

uint64_t forecast_of(const struct forecast *f, uint64_t key, const struct backend_job *job)
{
    const unsigned i = key % FORECAST_KINDS;

    return f->kinds[i].key == key ? f->kinds[i].ns * executions(job) : 0;
}

void forecast_learn(struct forecast *f, uint64_t key, const struct backend_job *job, uint64_t took_ns)
{
    const unsigned i = key % FORECAST_KINDS;

    if (f->kinds[i].key != key) {
        f->kinds[i].key = key;
        f->kinds[i].ns = 0;
    }
    f->kinds[i].ns = wait_learn(f->kinds[i].ns, took_ns / executions(job));
}

void forecast_learn_less(struct forecast *f, uint64_t key)
{
    const unsigned i = key % FORECAST_KINDS;

    /* A late timer costs no call after this one: the next window still has the true end in it. */
    if (f->kinds[i].key == key)
        f->kinds[i].ns -= f->kinds[i].ns / 8;
}

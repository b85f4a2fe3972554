/* Counts the jobs that executors have on each GPU. Thread: loop. */
#include "backend/memory_ids.h"
#include "executor/front_policy.h"
#include "util/clock.h"

uint32_t front_load_gpus(const struct front_device *gpu, const struct backend_job *job)
{
    uint32_t gpus = 1U << gpu->number;

    for (unsigned i = 0; gpu->front->n_devices > 1 && i < job->n_steps; i++)
        for (unsigned o = 0; o < step_operands(&job->steps[i]); o++) {
            const struct step_operand *operand = &job->steps[i].operands[o];
            const struct backend_memory *memory = operand->extent ? memory_by_id(operand->memory) : NULL;

            if (memory && memory->kind != MEMORY_MEMFD)
                gpus |= 1U << front_device(memory->device)->number;
        }
    return gpus;
}

void front_load_add(struct executor *x, const struct front_job *own)
{
    struct front_load *load = &x->loads[own->stream->device->number];

    if (!x->unfinished++)
        x->busy_ns = own->submitted_ns;
    if (!load->jobs++)
        load->in_a_row = 0;
    for (unsigned i = 0; i < x->front->n_devices; i++)
        x->loads[i].users += own->gpus >> i & 1;
}

/* The mean of the last ones, about. */
static void note_duration(struct front_load *load, const struct front_job *own)
{
    const uint64_t job_ns = clock_now_ns() - own->first_ns;

    load->job_ns = load->job_ns ? (3 * load->job_ns + job_ns) / 4 : job_ns;
}

/* Whether someone waits for the GPU's end of work. */
static bool leave_gpu(struct front_load *load, const struct front_device *gpu)
{
    if (--load->users)
        return false;
    load->used_ns = clock_now_ns();
    return gpu->hold.holder != NULL;
}

void front_load_remove(struct executor *x, const struct front_job *own)
{
    struct front *f = x->front;
    const struct front_device *gpu = own->stream->device;
    struct front_load *load = &x->loads[gpu->number];
    bool news = false;

    load->in_a_row++;
    if (!x->common && own->first_ns)
        note_duration(load, own);
    if (--load->jobs == 0)
        news = gpu->turns.n_waiting != 0; /* another domain's turn */
    for (unsigned i = 0; i < f->n_devices; i++)
        if (own->gpus >> i & 1)
            news = leave_gpu(&x->loads[i], f->devices[i]) || news;
    if (--x->unfinished == 0) {
        x->used_ns = load->used_ns;
        x->device_ns += x->used_ns - x->busy_ns;
        news = news || (x->domain && x->domain->leaving_ns); /* another domain's place */
    }
    if (news)
        front_tell(f);
}

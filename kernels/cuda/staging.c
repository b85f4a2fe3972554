/* Owns the scratch memory and the copies of one staged job. */
#include "staging.h"

#include "device.h"
#include "pin.h"
#include "stream.h"

enum { SCRATCH_ALIGNMENT = 512 };

/* One operand while its staging is set up. */
struct place {
    bool staged;
    unsigned same_as; /* the first operand with the same bytes: an output in place, or an input given twice */
    bool copied_in;
    uint64_t offset; /* in the scratch */
    struct cuda_pin_view pin;
};

static unsigned operand_count(const struct backend_job *job)
{
    return job->op->n_inputs + job->op->n_outputs;
}

static bool is_staged(const struct backend_operand *o)
{
    return o->memory && o->memory->kind == MEMORY_MEMFD;
}

bool cuda_staging_is_needed(const struct backend_job *job)
{
    for (unsigned i = 0; i < operand_count(job); i++)
        if (is_staged(&job->operands[i]))
            return true;
    return false;
}

static bool same_bytes(const struct backend_operand *a, const struct backend_operand *b)
{
    return a->memory == b->memory && a->offset == b->offset && a->extent == b->extent;
}

/* Whether what the output held before matters: gemm's beta. In place it is an input, too. */
static bool output_is_read(const struct backend_job *job)
{
    return job->plan.kind == PLAN_GEMM && job->plan.gemm.beta != 0.0;
}

/* Finds each operand's place in the scratch, and how large that must be. */
static uint64_t lay_out(const struct backend_job *job, struct place *places)
{
    uint64_t total = 0;

    for (unsigned i = 0; i < operand_count(job); i++) {
        const struct backend_operand *o = &job->operands[i];
        bool read = i < job->op->n_inputs || output_is_read(job);
        unsigned first = 0;

        places[i] = (struct place){.staged = is_staged(o), .same_as = i};
        if (!places[i].staged)
            continue;
        while (first < i && !(places[first].staged && same_bytes(&job->operands[first], o)))
            first++;
        places[i].same_as = first;
        places[first].copied_in |= read;
        if (first == i) {
            places[i].offset = total;
            total += (o->extent + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
        }
    }
    return total;
}

static int pin_all(struct cuda_device *d, const struct backend_job *job, struct place *places, struct error *e)
{
    for (unsigned i = 0; i < operand_count(job); i++)
        if (places[i].staged && cuda_pin(d, job->operands[i].memory, &places[i].pin, e) < 0)
            return -1;
    return 0;
}

static void plan_inputs(const struct backend_job *job, const struct place *places, struct cuda_staging *staging)
{
    for (unsigned i = 0; i < operand_count(job); i++) {
        const struct backend_operand *o = &job->operands[i];

        if (places[i].staged && places[i].same_as == i && places[i].copied_in)
            staging->in[staging->n_in++] = (struct cuda_copy_in){
                .host = o->memory->host + o->offset,
                .to = staging->scratch + places[i].offset,
                .extent = o->extent,
            };
    }
}

/* The output's elements as a copy from the scratch to the mapping: the same strides on both sides, since the scratch
 * has the output's extent. Normal form as plan.h has it: no dimension of size 1, strides do not grow inwards. */
static struct plan_elementwise copy_plan(const struct backend_job *job, unsigned operand)
{
    struct plan_elementwise copy = {.count = 1};
    const struct plan_gemm *g = &job->plan.gemm;
    int64_t shape[TENSOR_MAX_RANK + 2], strides[TENSOR_MAX_RANK + 2];
    unsigned rank = 0;

    if (job->plan.kind == PLAN_ELEMENTWISE) {
        const struct plan_elementwise *p = &job->plan.elementwise;

        for (; rank < p->rank; rank++) {
            shape[rank] = p->shape[rank];
            strides[rank] = p->strides[operand][rank];
        }
    } else {
        for (; rank < g->batch_rank; rank++) {
            shape[rank] = g->batch_shape[rank];
            strides[rank] = g->out.batch[rank];
        }
        shape[rank] = g->m;
        strides[rank++] = g->out.row;
        shape[rank] = g->n;
        strides[rank++] = g->out.column;
    }
    for (unsigned i = 0; i < rank; i++) {
        unsigned at = copy.rank;

        if (shape[i] == 1)
            continue;
        for (; at > 0 && copy.strides[0][at - 1] < strides[i]; at--) {
            copy.shape[at] = copy.shape[at - 1];
            copy.strides[0][at] = copy.strides[0][at - 1];
        }
        copy.shape[at] = shape[i];
        copy.strides[0][at] = strides[i];
        copy.rank++;
    }
    if (copy.rank == 0) {
        copy.rank = 1;
        copy.shape[0] = copy.strides[0][0] = 1;
    }
    for (unsigned i = 0; i < copy.rank; i++) {
        copy.strides[1][i] = copy.strides[0][i];
        copy.count *= (uint64_t)copy.shape[i];
    }
    copy.contiguous = copy.rank == 1 && copy.strides[0][0] == 1;
    return copy;
}

static int plan_write_back(struct cuda_device *d, const struct backend_job *job, unsigned operand,
                           const struct place *place, struct cuda_write_back *out, uint64_t address, struct error *e)
{
    const struct backend_operand *o = &job->operands[operand];
    size_t element = dtype_size(job->plan.dtype);
    struct plan_elementwise copy = copy_plan(job, operand);

    out->used = true;
    out->host = o->memory->host + o->offset;
    out->from = address;
    out->extent = o->extent;
    out->function = NULL;
    if (copy.count * element == o->extent)
        return 0;
    if (cuda_ops_copy(&copy, element, address, place->pin.on_device + o->offset, &d->launch, &out->launch, e) < 0)
        return -1;
    out->function = cuda_kernels_find(&d->kernels, out->launch.kernel);
    if (!out->function)
        return error_set(e, ERROR_INTERNAL, "no embedded image has the kernel %s", out->launch.kernel);
    return 0;
}

static int plan_outputs(struct cuda_device *d, const struct backend_job *job, const struct place *places,
                        struct cuda_staging *staging, const uint64_t *addresses, struct error *e)
{
    for (unsigned i = 0; i < job->op->n_outputs; i++) {
        unsigned operand = job->op->n_inputs + i;

        if (!places[operand].staged)
            continue;
        if (plan_write_back(d, job, operand, &places[operand], &staging->out[i], addresses[operand], e) < 0)
            return -1;
    }
    return 0;
}

int cuda_staging_prepare(struct cuda_stream *stream, const struct backend_job *job, struct cuda_staging *staging,
                         uint64_t *addresses, struct error *e)
{
    struct cuda_device *d = stream->device;
    struct place places[PLAN_MAX_OPERANDS];
    uint64_t total = lay_out(job, places);

    *staging = (struct cuda_staging){.active = true};
    if (pin_all(d, job, places, e) < 0)
        return -1;
    if (CUDA_CALL(d, e, MemAllocFromPoolAsync, &staging->scratch, total, d->pool, stream->stream) < 0)
        return -1;
    for (unsigned i = 0; i < operand_count(job); i++)
        if (places[i].staged)
            addresses[i] = staging->scratch + places[places[i].same_as].offset;
    plan_inputs(job, places, staging);
    if (plan_outputs(d, job, places, staging, addresses, e) < 0)
        goto free_scratch;
    return 0;

free_scratch:
    cuda_staging_free(stream, staging);
    return -1;
}

int cuda_staging_copy_in(struct cuda_stream *stream, const struct backend_job *job, struct cuda_staging *staging,
                         struct error *e)
{
    struct cuda_device *d = stream->device;
    bool timed = job->timing && staging->n_in > 0;

    if (timed && cuda_event_mark(d, EVENT_TIMED, stream->stream, &staging->h2d_start, e) < 0)
        return -1;
    for (unsigned i = 0; i < staging->n_in; i++) {
        const struct cuda_copy_in *in = &staging->in[i];

        if (CUDA_CALL(d, e, MemcpyHtoDAsync, in->to, in->host, in->extent, stream->stream) < 0)
            return -1;
    }
    return timed ? cuda_event_mark(d, EVENT_TIMED, stream->stream, &staging->h2d_end, e) : 0;
}

static int write_back_one(struct cuda_stream *stream, struct cuda_write_back *out, struct error *e)
{
    const struct cuda_launch *l = &out->launch;
    void *params[] = {out->launch.params};

    if (!out->function)
        return CUDA_CALL(stream->device, e, MemcpyDtoHAsync, out->host, out->from, out->extent, stream->stream);
    return CUDA_CALL(stream->device, e, LaunchKernel, out->function, l->grid[0], l->grid[1], l->grid[2], l->block[0],
                     l->block[1], l->block[2], l->shared_bytes, stream->stream, params, NULL);
}

int cuda_staging_write_back(struct cuda_stream *stream, const struct backend_job *job, struct cuda_staging *staging,
                            struct error *e)
{
    for (unsigned i = 0; i < job->op->n_outputs; i++) {
        if (!staging->out[i].used)
            continue;
        if (job->timing && !staging->d2h_start &&
            cuda_event_mark(stream->device, EVENT_TIMED, stream->stream, &staging->d2h_start, e) < 0)
            return -1;
        if (write_back_one(stream, &staging->out[i], e) < 0)
            return -1;
    }
    return 0;
}

void cuda_staging_free(struct cuda_stream *stream, struct cuda_staging *staging)
{
    if (staging->scratch)
        cuda.MemFreeAsync(staging->scratch, stream->stream);
    staging->scratch = 0;
}

void cuda_staging_release(struct cuda_device *d, struct cuda_staging *staging)
{
    cuda_event_return(d, EVENT_TIMED, staging->h2d_start);
    cuda_event_return(d, EVENT_TIMED, staging->h2d_end);
    cuda_event_return(d, EVENT_TIMED, staging->d2h_start);
    staging->h2d_start = staging->h2d_end = staging->d2h_start = NULL;
}

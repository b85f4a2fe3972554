/* Owns the scratch memory and the copies of one staged step. */
#include "staging.h"

#include <string.h>

#include "device.h"
#include "pin.h"
#include "stream.h"
#include "view.h"

enum {
    SCRATCH_ALIGNMENT = 512,
    SPARSE = 4 /* an operand of which less than one byte in so many is meant travels element by element */
};

/* One operand while its staging is set up. */
struct place {
    bool staged;
    unsigned same_as; /* the first operand with the same bytes: an output in place, or an input given twice */
    bool shared;      /* another one has the same bytes */
    bool copied_in;
    bool packed;     /* in the scratch its elements follow each other */
    uint64_t offset; /* in the scratch */
    struct cuda_pin_view pin;
    struct cuda_view view;
    int64_t strides[TENSOR_MAX_RANK]; /* the view's in the scratch */
};

static unsigned operand_count(const struct backend_step *step)
{
    return step->op->n_inputs + step->op->n_outputs;
}

static bool is_staged(const struct backend_operand *o)
{
    return o->memory && o->memory->kind == MEMORY_MEMFD && o->extent > 0;
}

bool cuda_staging_is_needed(const struct backend_step *step)
{
    for (unsigned i = 0; i < operand_count(step); i++)
        if (is_staged(&step->operands[i]))
            return true;
    return false;
}

static bool same_bytes(const struct backend_operand *a, const struct backend_operand *b)
{
    return a->memory == b->memory && a->offset == b->offset && a->extent == b->extent;
}

/* Whether what the output held before matters: gemm's beta. In place it is an input, too. */
static bool output_is_read(const struct backend_step *step)
{
    return step->plan.kind == PLAN_GEMM && step->plan.gemm.beta != 0.0;
}

/* Finds which operands are staged, and which of them together. */
static void find_places(const struct backend_step *step, struct place *places)
{
    for (unsigned i = 0; i < operand_count(step); i++) {
        const struct backend_operand *o = &step->operands[i];
        unsigned first = 0;

        places[i] = (struct place){.staged = is_staged(o), .same_as = i};
        if (!places[i].staged)
            continue;
        while (first < i && !(places[first].staged && same_bytes(&step->operands[first], o)))
            first++;
        places[i].same_as = first;
        places[first].shared |= first != i;
        places[first].copied_in |= i < step->op->n_inputs || output_is_read(step);
    }
}

static int pin_all(struct cuda_device *d, const struct backend_step *step, struct place *places, struct error *e)
{
    for (unsigned i = 0; i < operand_count(step); i++)
        if (places[i].staged && cuda_pin(d, step->operands[i].memory, &places[i].pin, e) < 0)
            return -1;
    return 0;
}

/* Gives each operand its layout in the scratch, writes that to the plan, and returns how large the scratch must be.
 * What is shared keeps its strides, since each operand has its own view of it. */
static uint64_t lay_out(const struct backend_step *step, struct place *places, struct plan *plan)
{
    size_t element = dtype_size(plan->dtype);
    uint64_t total = 0;

    for (unsigned i = 0; i < operand_count(step); i++) {
        struct place *p = &places[i];
        uint64_t bytes = step->operands[i].extent;

        if (!p->staged)
            continue;
        p->view = cuda_view_of(plan, i);
        memcpy(p->strides, p->view.strides, sizeof(p->strides));
        p->packed = p->same_as == i && !p->shared && p->pin.registered && p->view.count * element < bytes / SPARSE;
        if (p->packed) {
            bytes = p->view.count * element;
            cuda_view_pack(&p->view, p->strides);
            cuda_view_restride(&p->view, p->strides);
        }
        if (p->same_as != i)
            continue;
        p->offset = total;
        total += (bytes + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
    }
    cuda_view_settle(plan, operand_count(step));
    return total;
}

/* Between the mapping and the operand's place on the device: the whole extent, or its elements. */
static int plan_transfer(struct cuda_device *d, const struct backend_operand *o, size_t element,
                         const struct place *place, uint64_t address, bool to_device, bool elements,
                         struct cuda_staging *staging, struct error *e)
{
    struct cuda_transfer *t = to_device ? &staging->in[staging->n_in++] : &staging->out[staging->n_out++];
    uint64_t mapped = place->pin.on_device + o->offset;
    const int64_t *there = place->strides, *here = place->view.strides;
    struct plan_elementwise copy;

    t->host = o->memory->host + o->offset;
    t->device = address;
    t->extent = o->extent;
    t->function = NULL;
    if (!elements)
        return 0;
    t->launch = &staging->launches[staging->n_launches++];
    copy = cuda_view_copy(&place->view, to_device ? here : there, to_device ? there : here);
    if (cuda_ops_copy(&copy, element, to_device ? mapped : address, to_device ? address : mapped, &d->launch, t->launch,
                      e) < 0)
        return -1;
    t->function = cuda_kernels_find(&d->kernels, t->launch->kernel);
    if (!t->function)
        return error_set(e, ERROR_INTERNAL, "no embedded image has the kernel %s", t->launch->kernel);
    return 0;
}

static int plan_transfers(struct cuda_device *d, const struct backend_step *step, const struct place *places,
                          struct cuda_staging *staging, const uint64_t *addresses, struct error *e)
{
    size_t element = dtype_size(step->plan.dtype);

    for (unsigned i = 0; i < operand_count(step); i++) {
        const struct backend_operand *o = &step->operands[i];
        const struct place *p = &places[i];
        /* What lies between an output's elements is not its own to write. */
        bool gaps = p->view.count * element != o->extent;

        if (!p->staged)
            continue;
        if (p->same_as == i && p->copied_in &&
            plan_transfer(d, o, element, p, addresses[i], true, p->packed, staging, e) < 0)
            return -1;
        if (i >= step->op->n_inputs && plan_transfer(d, o, element, p, addresses[i], false, gaps, staging, e) < 0)
            return -1;
    }
    return 0;
}

int cuda_staging_scratch(struct cuda_stream *stream, uint64_t bytes, CUdeviceptr *ret, struct error *e)
{
    struct cuda_device *d = stream->device;

    if (!d->pool)
        return error_set(e, ERROR_UNSUPPORTED,
                         "%s has no memory pools, so it cannot copy shared host memory in and out; use device memory",
                         d->base.info.name);
    return CUDA_CALL(d, e, MemAllocFromPoolAsync, ret, bytes, d->pool, stream->stream);
}

int cuda_staging_prepare(struct cuda_stream *stream, const struct backend_step *step, struct cuda_staging *staging,
                         struct plan *plan, uint64_t *addresses, struct error *e)
{
    struct cuda_device *d = stream->device;
    struct place places[STEP_MAX_OPERANDS];
    uint64_t total;

    if (step->plan.kind == PLAN_KERNEL)
        return cuda_staging_prepare_kernel(stream, step, staging, addresses, e);
    staging->active = true;
    find_places(step, places);
    if (pin_all(d, step, places, e) < 0)
        return -1;
    total = lay_out(step, places, plan);
    if (cuda_staging_scratch(stream, total, &staging->scratch, e) < 0)
        return -1;
    for (unsigned i = 0; i < operand_count(step); i++)
        if (places[i].staged)
            addresses[i] = staging->scratch + places[places[i].same_as].offset;
    if (plan_transfers(d, step, places, staging, addresses, e) < 0)
        goto free_scratch;
    return 0;

free_scratch:
    cuda_staging_free(stream, staging);
    return -1;
}

static int launch(struct cuda_stream *stream, struct cuda_transfer *t, struct error *e)
{
    const struct cuda_launch *l = t->launch;
    void *params[] = {t->launch->params};

    return CUDA_CALL(stream->device, e, LaunchKernel, t->function, l->grid[0], l->grid[1], l->grid[2], l->block[0],
                     l->block[1], l->block[2], l->shared_bytes, stream->stream, params, NULL);
}

int cuda_staging_copy_in(struct cuda_stream *stream, struct cuda_staging *staging, bool timing, struct error *e)
{
    struct cuda_device *d = stream->device;
    bool timed = timing && staging->n_in > 0;

    if (timed && cuda_event_mark(d, EVENT_TIMED, stream->stream, &staging->h2d_start, e) < 0)
        return -1;
    for (unsigned i = 0; i < staging->n_in; i++) {
        struct cuda_transfer *t = &staging->in[i];

        if (t->function ? launch(stream, t, e) < 0
                        : CUDA_CALL(d, e, MemcpyHtoDAsync, t->device, t->host, t->extent, stream->stream) < 0)
            return -1;
    }
    return timed ? cuda_event_mark(d, EVENT_TIMED, stream->stream, &staging->h2d_end, e) : 0;
}

int cuda_staging_write_back(struct cuda_stream *stream, struct cuda_staging *staging, bool timing, struct error *e)
{
    struct cuda_device *d = stream->device;

    if (timing && staging->n_out > 0 && cuda_event_mark(d, EVENT_TIMED, stream->stream, &staging->d2h_start, e) < 0)
        return -1;
    for (unsigned i = 0; i < staging->n_out; i++) {
        struct cuda_transfer *t = &staging->out[i];

        if (t->function ? launch(stream, t, e) < 0
                        : CUDA_CALL(d, e, MemcpyDtoHAsync, t->host, t->device, t->extent, stream->stream) < 0)
            return -1;
    }
    return 0;
}

void cuda_staging_free(struct cuda_stream *stream, struct cuda_staging *staging)
{
    if (staging->scratch)
        cuda_on(stream->device)->MemFreeAsync(staging->scratch, stream->stream);
    staging->scratch = 0;
}

void cuda_staging_release(struct cuda_device *d, struct cuda_staging *staging)
{
    cuda_event_return(d, EVENT_TIMED, staging->h2d_start);
    cuda_event_return(d, EVENT_TIMED, staging->h2d_end);
    cuda_event_return(d, EVENT_TIMED, staging->d2h_start);
    staging->h2d_start = staging->h2d_end = staging->d2h_start = NULL;
}

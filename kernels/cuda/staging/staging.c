/* Owns the scratch memory and the copies of one staged step. */
#include "staging.h"

#include <string.h>

#include "compute/embedded.h"
#include "driver/scratch.h"
#include "layout.h"
#include "memory/operand.h"
#include "memory/registration.h"
#include "ops/params.h"

enum {
    SCRATCH_ALIGNMENT = 512,
    SPARSE = 4, /* an operand is moved by elements when they are less than one in so many of its bytes */

    /* So many bytes of a step, in one direction, are moved by one launch, in place of a driver's call for each operand
     * and of a change from kernels to a copy engine. Kernels and copy engines took the same on an H200, up to 1 MiB. */
    MOVED_BYTES = 64 << 10
};

_Static_assert((int)MOVED_BYTES <= (int)CUDA_OPS_MOVE_BYTES && (int)STEP_MAX_OPERANDS <= (int)CUDA_OPS_MOVE_PIECES,
               "one launch moves them");

/* One operand while its staging is set up. */
struct place {
    bool staged;
    unsigned same_as; /* the first operand with the same bytes: an output in place, or an input given twice */
    bool shared;      /* another operand has the same bytes */
    bool copied_in;
    bool packed;     /* its elements follow each other in the scratch memory */
    uint64_t offset; /* in the scratch */
    struct cuda_registered registered;
    struct cuda_layout layout;
    int64_t strides[TENSOR_MAX_RANK]; /* the layout's in the scratch */
};

static bool same_bytes(const struct step_operand *a, const struct step_operand *b)
{
    return cuda_operand_memory(a) == cuda_operand_memory(b) && a->offset == b->offset && a->extent == b->extent;
}

/* Whether the step reads its output: gemm does unless beta is 0. An output in place is an input, too. */
static bool output_is_read(const struct step *step)
{
    return step->plan.kind == PLAN_GEMM && step->plan.gemm.beta != 0.0;
}

/* Finds which operands are staged, and which of them together. */
static void find_places(const struct step *step, struct place *places)
{
    for (unsigned i = 0; i < step_operands(step); i++) {
        const struct step_operand *o = &step->operands[i];
        unsigned first = 0;

        places[i] = (struct place){.staged = cuda_operand_is_staged(o), .same_as = i};
        if (!places[i].staged)
            continue;
        while (first < i && !(places[first].staged && same_bytes(&step->operands[first], o)))
            first++;
        places[i].same_as = first;
        places[first].shared |= first != i;
        places[first].copied_in |= i < step->n_inputs || output_is_read(step);
    }
}

static int register_all(struct cuda_device *d, const struct step *step, struct place *places, struct error *e)
{
    for (unsigned i = 0; i < step_operands(step); i++)
        if (places[i].staged && cuda_register(d, cuda_operand_memory(&step->operands[i]), &places[i].registered, e) < 0)
            return -1;
    return 0;
}

/* Gives each operand its layout in the scratch memory, writes the layout to the plan, and returns the size that the
 * scratch memory must have. Bytes that operands share keep their strides, since each operand has a layout of its own
 * over them. */
static uint64_t lay_out(const struct step *step, struct place *places, struct plan *plan)
{
    uint64_t total = 0;

    for (unsigned i = 0; i < step_operands(step); i++) {
        struct place *p = &places[i];
        const size_t element = dtype_size(step_dtype(step, i));
        uint64_t bytes = step->operands[i].extent;

        if (!p->staged)
            continue;
        p->layout = cuda_layout_of(plan, i);
        memcpy(p->strides, p->layout.strides, sizeof(p->strides));
        p->packed =
            p->same_as == i && !p->shared && p->registered.registered && p->layout.count * element < bytes / SPARSE;
        if (p->packed) {
            bytes = p->layout.count * element;
            cuda_layout_pack(&p->layout, p->strides);
            cuda_layout_restride(&p->layout, p->strides);
        }
        if (p->same_as != i)
            continue;
        p->offset = total;
        total += (bytes + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
    }
    cuda_layout_settle(plan, step_operands(step));
    return total;
}

/* Adds a transfer between the mapping and the operand's place on the device: the whole extent, or its elements. */
static int plan_transfer(const struct cuda_embedded *kernels, const struct step_operand *o, size_t element,
                         const struct place *place, uint64_t address, bool to_device, bool elements,
                         struct cuda_staging *staging, struct error *e)
{
    struct cuda_transfer *t = to_device ? &staging->in[staging->n_in++] : &staging->out[staging->n_out++];
    uint64_t mapped = place->registered.on_device + o->offset;
    const int64_t *there = place->strides, *here = place->layout.strides;
    struct plan_elementwise copy;

    t->host = cuda_operand_memory(o)->host + o->offset;
    t->mapped = place->registered.registered ? mapped : 0;
    t->device = address;
    t->extent = o->extent;
    t->function = NULL;
    if (!elements)
        return 0;
    t->launch = &staging->launches[staging->n_launches++];
    copy = cuda_layout_copy(&place->layout, to_device ? here : there, to_device ? there : here);
    if (cuda_ops_copy(&copy, element, to_device ? mapped : address, to_device ? address : mapped, t->launch, e) < 0)
        return -1;
    t->function = cuda_embedded_find(kernels, t->launch->kernel);
    if (!t->function)
        return error_set(e, ERROR_INTERNAL, "no embedded binary has the kernel %s", t->launch->kernel);
    return 0;
}

static int plan_transfers(const struct cuda_embedded *kernels, const struct step *step, const struct place *places,
                          struct cuda_staging *staging, const uint64_t *addresses, struct error *e)
{
    for (unsigned i = 0; i < step_operands(step); i++) {
        const struct step_operand *o = &step->operands[i];
        const struct place *p = &places[i];
        const size_t element = dtype_size(step_dtype(step, i));
        /* Bytes between an output's elements belong to others, and are not written. */
        bool gaps = p->layout.count * element != o->extent;

        if (!p->staged)
            continue;
        if (p->same_as == i && p->copied_in &&
            plan_transfer(kernels, o, element, p, addresses[i], true, p->packed, staging, e) < 0)
            return -1;
        if (i >= step->n_inputs && plan_transfer(kernels, o, element, p, addresses[i], false, gaps, staging, e) < 0)
            return -1;
    }
    return 0;
}

bool cuda_staging_is_light(const struct cuda_device *d, const struct step *step)
{
    uint64_t total = 0;

    if (step->plan.kind != PLAN_ELEMENTWISE && step->plan.kind != PLAN_KERNEL)
        return false;
    for (unsigned i = 0; i < step_operands(step); i++) {
        const struct step_operand *o = &step->operands[i];

        if (!cuda_operand_is_staged(o))
            continue;
        total += o->extent;
        if (total > MOVED_BYTES || !cuda_is_registered(d, cuda_operand_memory(o)))
            return false;
    }
    return true;
}

int cuda_staging_take(const struct cuda_queue *q, const struct step *step, struct cuda_staging *staging, uint64_t bytes,
                      CUdeviceptr *ret_address, struct error *e)
{
    if (q->small && bytes <= STAGING_SMALL_BYTES && cuda_staging_is_light(q->device, step)) {
        *ret_address = q->small;
        return 0;
    }
    if (cuda_scratch_alloc(q->device, q->stream, bytes, &staging->scratch, e) < 0)
        return -1;
    *ret_address = staging->scratch;
    return 0;
}

static int place_operands(const struct cuda_embedded *kernels, const struct cuda_queue *q, const struct step *step,
                          struct cuda_staging *staging, struct plan *plan, uint64_t *addresses, struct error *e)
{
    struct cuda_device *d = q->device;
    struct place places[STEP_MAX_OPERANDS];
    CUdeviceptr memory;
    uint64_t total;

    find_places(step, places);
    if (register_all(d, step, places, e) < 0)
        return -1;
    total = lay_out(step, places, plan);
    if (cuda_staging_take(q, step, staging, total, &memory, e) < 0)
        return -1;
    for (unsigned i = 0; i < step_operands(step); i++)
        if (places[i].staged)
            addresses[i] = memory + places[places[i].same_as].offset;
    return plan_transfers(kernels, step, places, staging, addresses, e);
}

/* Makes one launch of the transfers where they are few bytes. */
static void gather(const struct cuda_embedded *kernels, const struct cuda_transfer *transfers, unsigned count,
                   bool to_device, struct cuda_move *move)
{
    struct cuda_ops_range ranges[STEP_MAX_OPERANDS];
    uint64_t total = 0;

    for (unsigned i = 0; i < count; i++) {
        const struct cuda_transfer *t = &transfers[i];

        if (t->function || !t->mapped)
            return;
        total += t->extent;
        ranges[i] = (struct cuda_ops_range){
            .from = to_device ? t->mapped : t->device, .to = to_device ? t->device : t->mapped, .bytes = t->extent};
    }
    if (!count || total > MOVED_BYTES)
        return;
    cuda_ops_move(ranges, count, &move->launch);
    move->function = cuda_embedded_find(kernels, move->launch.kernel);
}

int cuda_staging_prepare(const struct cuda_embedded *kernels, const struct cuda_queue *q, const struct step *step,
                         struct cuda_staging *staging, struct plan *plan, uint64_t *addresses, struct error *e)
{
    const int r = step->plan.kind == PLAN_KERNEL ? cuda_staging_place_kernel(q, step, staging, addresses, e)
                                                 : place_operands(kernels, q, step, staging, plan, addresses, e);

    if (r < 0) {
        cuda_staging_free(q, staging);
        return -1;
    }
    gather(kernels, staging->in, staging->n_in, true, &staging->move_in);
    gather(kernels, staging->out, staging->n_out, false, &staging->move_out);
    return 0;
}

/* ---- the transfers ---- */

static int transfer(const struct cuda_queue *q, struct cuda_transfer *t, bool to_device, struct error *e)
{
    if (t->function)
        return cuda_embedded_launch(q, t->function, t->launch, e);
    return to_device ? CUDA_CALL(q->device, e, MemcpyHtoDAsync, t->device, t->host, t->extent, q->stream)
                     : CUDA_CALL(q->device, e, MemcpyDtoHAsync, t->host, t->device, t->extent, q->stream);
}

static int transfer_all(const struct cuda_queue *q, struct cuda_transfer *transfers, unsigned count, bool to_device,
                        struct cuda_move *move, struct error *e)
{
    if (move->function)
        return cuda_embedded_launch(q, move->function, &move->launch, e);
    for (unsigned i = 0; i < count; i++)
        if (transfer(q, &transfers[i], to_device, e) < 0)
            return -1;
    return 0;
}

int cuda_staging_copy_in(const struct cuda_queue *q, struct cuda_staging *staging, bool timing, struct error *e)
{
    struct cuda_device *d = q->device;
    bool timed = timing && staging->n_in > 0;

    if (timed && cuda_event_mark(d, EVENT_TIMED, q->stream, &staging->h2d_start, e) < 0)
        return -1;
    if (transfer_all(q, staging->in, staging->n_in, true, &staging->move_in, e) < 0)
        return -1;
    return timed ? cuda_event_mark(d, EVENT_TIMED, q->stream, &staging->h2d_end, e) : 0;
}

int cuda_staging_write_back(const struct cuda_queue *q, struct cuda_staging *staging, bool timing, struct error *e)
{
    struct cuda_device *d = q->device;

    if (timing && staging->n_out > 0 && cuda_event_mark(d, EVENT_TIMED, q->stream, &staging->d2h_start, e) < 0)
        return -1;
    return transfer_all(q, staging->out, staging->n_out, false, &staging->move_out, e);
}

void cuda_staging_free(const struct cuda_queue *q, struct cuda_staging *staging)
{
    cuda_scratch_free(q->device, q->stream, staging->scratch);
    staging->scratch = 0;
}

void cuda_staging_release(struct cuda_device *d, struct cuda_staging *staging)
{
    cuda_event_return(d, EVENT_TIMED, staging->h2d_start);
    cuda_event_return(d, EVENT_TIMED, staging->h2d_end);
    cuda_event_return(d, EVENT_TIMED, staging->d2h_start);
    staging->h2d_start = staging->h2d_end = staging->d2h_start = NULL;
}

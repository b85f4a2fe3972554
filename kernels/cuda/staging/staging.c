/* Owns the scratch memory and the copies of a staged step. */
#include "staging.h"

#include <stdint.h>
#include <string.h>

#include "compute/kernels.h"
#include "core/plan.h"
#include "driver/device.h"
#include "memory/operand.h"
#include "ops/params.h"

enum {
    SCRATCH_ALIGNMENT = 512,
    SPARSE = 4, /* an operand is copied element by element when less than 1/SPARSE of its bytes are elements */

    /* Up to so many bytes of a step, in one direction, are copied by one launch. That saves a driver call for each
     * operand, and the switch from kernels to a copy engine. Both took the same time on an H200, up to 1 MiB. */
    MOVED_BYTES = 64 << 10
};

_Static_assert((int)MOVED_BYTES <= (int)CUDA_OPS_MOVE_BYTES && (int)STEP_MAX_OPERANDS <= (int)CUDA_OPS_MOVE_PIECES,
               "one launch moves them");

/* ---- the layout of an operand: its distinct elements, and their strides ---- */

/* Dimensions of size 1 and of stride 0, which repeats elements, are left out. Strides descend from the outermost
 * dimension to the innermost. */
struct layout {
    unsigned rank;
    int64_t shape[TENSOR_MAX_RANK], strides[TENSOR_MAX_RANK];
    int64_t *in_plan[TENSOR_MAX_RANK]; /* points to each stride in the plan */
    uint64_t count;                    /* elements */
};

/* Inserts a dimension, in descending order of strides. */
static void add(struct layout *v, int64_t size, int64_t *stride)
{
    unsigned at = v->rank;

    if (size == 1 || *stride == 0)
        return;
    for (; at > 0 && v->strides[at - 1] < *stride; at--) {
        v->shape[at] = v->shape[at - 1];
        v->strides[at] = v->strides[at - 1];
        v->in_plan[at] = v->in_plan[at - 1];
    }
    v->shape[at] = size;
    v->strides[at] = *stride;
    v->in_plan[at] = stride;
    v->rank++;
    v->count *= (uint64_t)size;
}

static struct layout layout_of_matrix(struct plan_gemm *g, unsigned operand)
{
    struct plan_matrix *matrix = (struct plan_matrix *)plan_gemm_matrix(g, operand);
    struct layout v = {.count = 1};

    for (unsigned i = 0; i < g->batch_rank; i++)
        add(&v, g->batch_shape[i], &matrix->batch[i]);
    add(&v, operand == PLAN_GEMM_B ? g->k : g->m, &matrix->row);
    add(&v, operand == PLAN_GEMM_A ? g->k : g->n, &matrix->column);
    return v;
}

/* `operand` counts inputs, then outputs. The layout points into the plan. */
static struct layout layout_of(struct plan *plan, unsigned operand)
{
    struct layout v = {.count = 1};

    if (plan->kind == PLAN_GEMM)
        return layout_of_matrix(&plan->gemm, operand);
    for (unsigned i = 0; i < plan->elementwise.rank; i++)
        add(&v, plan->elementwise.shape[i], &plan->elementwise.strides[operand][i]);
    return v;
}

/* Computes the strides of the elements packed without gaps. */
static void pack(const struct layout *v, int64_t *ret_strides)
{
    int64_t stride = 1;

    for (unsigned i = v->rank; i-- > 0;) {
        ret_strides[i] = stride;
        stride *= v->shape[i];
    }
}

static void restride(const struct layout *v, const int64_t *strides)
{
    for (unsigned i = 0; i < v->rank; i++)
        *v->in_plan[i] = strides[i];
}

/* Sets the plan's `contiguous` anew, after the last restride. */
static void settle(struct plan *plan, unsigned operands)
{
    struct plan_elementwise *p = &plan->elementwise;

    if (plan->kind != PLAN_ELEMENTWISE)
        return;
    p->contiguous = p->rank == 1;
    for (unsigned i = 0; i < operands; i++)
        p->contiguous &= p->strides[i][0] == 1;
}

static struct plan_elementwise copy_of(const struct layout *v, const int64_t *source, const int64_t *target)
{
    struct plan_elementwise copy = {.rank = v->rank, .count = v->count};

    memcpy(copy.shape, v->shape, v->rank * sizeof(int64_t));
    memcpy(copy.strides[0], source, v->rank * sizeof(int64_t));
    memcpy(copy.strides[1], target, v->rank * sizeof(int64_t));
    if (copy.rank == 0) {
        copy.rank = 1;
        copy.shape[0] = copy.strides[0][0] = copy.strides[1][0] = 1;
    }
    copy.contiguous = copy.rank == 1 && copy.strides[0][0] == 1 && copy.strides[1][0] == 1;
    return copy;
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

/* Gets device memory for the step's operands: the queue's small memory for a light step, or else scratch memory. */
static int take_memory(const struct cuda_queue *q, const struct step *step, struct cuda_staging *staging,
                       uint64_t bytes, CUdeviceptr *ret_address, struct error *e)
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

/* ---- users' kernels ----
 *
 * A kernel may read its outputs and need not write all of them, so all operands are copied to the device, and outputs
 * are copied back. Operands keep their layout, and overlapping operands their distance. The bytes between the elements
 * of a strided output may be written by other jobs meanwhile, so a range with such an output is not copied: the kernel
 * works on host memory in place. */

enum { RANGE_IN_PLACE = 1 /* not copied */ };

struct ranges {
    unsigned n;
    struct cuda_range items[STEP_MAX_OPERANDS];
    CUdeviceptr mapped[STEP_MAX_OPERANDS]; /* the device's address of each range in host memory; 0: not registered */
    uint64_t addresses[STEP_MAX_OPERANDS]; /* the address of each range for the user's kernel */
};

static void find_ranges(const struct step *step, struct ranges *all)
{
    all->n = 0;
    for (unsigned i = 0; i < step_operands(step); i++) {
        struct cuda_range range = cuda_operand_range(&step->operands[i]);

        if (!cuda_operand_is_staged(&step->operands[i]))
            continue;
        if (i >= step->n_inputs && (step->plan.kernel.sparse >> i & 1))
            range.flags = RANGE_IN_PLACE;
        all->n = cuda_ranges_add(all->items, all->n, range);
    }
}

/* Registers the ranges' memory and assigns offsets in the scratch memory. Each range keeps its alignment, against which
 * the tensors were checked. */
static int lay_out_ranges(struct cuda_device *d, struct ranges *all, uint64_t *ret_total, struct error *e)
{
    uint64_t total = 0;

    for (unsigned i = 0; i < all->n; i++) {
        const struct cuda_range *r = &all->items[i];
        struct cuda_registered registered;

        if (cuda_register(d, r->memory, &registered, e) < 0)
            return -1;
        all->mapped[i] = registered.registered ? registered.on_device + r->start : 0;
        if (r->flags & RANGE_IN_PLACE) {
            all->addresses[i] = all->mapped[i]; /* writable memory is registered */
            continue;
        }
        total = (total + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT + r->start % SCRATCH_ALIGNMENT;
        all->addresses[i] = total;
        total += r->end - r->start;
    }
    *ret_total = total;
    return 0;
}

static struct cuda_transfer transfer_of(const struct ranges *all, unsigned i, uint64_t offset, uint64_t extent)
{
    const uint64_t within = offset - all->items[i].start;

    return (struct cuda_transfer){.host = all->items[i].memory->host + offset,
                                  .mapped = all->mapped[i] ? all->mapped[i] + within : 0,
                                  .device = all->addresses[i] + within,
                                  .extent = extent};
}

static unsigned range_of(const struct ranges *all, const struct step_operand *o)
{
    const struct cuda_range wanted = cuda_operand_range(o);
    unsigned i = 0;

    while (!cuda_ranges_overlap(&all->items[i], &wanted))
        i++;
    return i;
}

static int place_ranges(const struct cuda_queue *q, const struct step *step, struct cuda_staging *staging,
                        uint64_t *addresses, struct error *e)
{
    CUdeviceptr memory = 0;
    struct ranges all;
    uint64_t total;

    find_ranges(step, &all);
    if (lay_out_ranges(q->device, &all, &total, e) < 0)
        return -1;
    if (total && take_memory(q, step, staging, total, &memory, e) < 0)
        return -1;
    for (unsigned i = 0; i < all.n; i++) {
        const struct cuda_range *r = &all.items[i];

        if (r->flags & RANGE_IN_PLACE)
            continue;
        all.addresses[i] += memory;
        staging->in[staging->n_in++] = transfer_of(&all, i, r->start, r->end - r->start);
    }
    for (unsigned i = 0; i < step_operands(step); i++) {
        const struct step_operand *o = &step->operands[i];
        unsigned n;

        if (!cuda_operand_is_staged(o))
            continue;
        n = range_of(&all, o);
        addresses[i] = all.addresses[n] + (o->offset - all.items[n].start);
        if (i >= step->n_inputs && !(all.items[n].flags & RANGE_IN_PLACE))
            staging->out[staging->n_out++] = transfer_of(&all, n, o->offset, o->extent);
    }
    return 0;
}

/* ---- ops ---- */

struct place {
    bool staged;
    unsigned same_as; /* the first operand with the same bytes: an output in place, or an input given twice */
    bool shared;      /* another operand has the same bytes */
    bool copied_in;
    bool packed;     /* without gaps in the scratch memory */
    uint64_t offset; /* in the scratch memory */
    struct cuda_registered registered;
    struct layout layout;
    int64_t strides[TENSOR_MAX_RANK]; /* strides of `layout` in the scratch memory */
};

static bool same_bytes(const struct step_operand *a, const struct step_operand *b)
{
    return cuda_operand_memory(a) == cuda_operand_memory(b) && a->offset == b->offset && a->extent == b->extent;
}

/* Finds which operands are staged, and which of them share bytes. */
static void find_places(const struct step *step, struct place *places)
{
    const bool reads_output = step->plan.kind == PLAN_GEMM && step->plan.gemm.beta != 0.0;

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
        places[first].copied_in |= i < step->n_inputs || reads_output;
    }
}

/* Chooses each operand's layout in the scratch memory, writes it to the plan, and returns the bytes of scratch memory.
 * Operands that share bytes keep their strides, since their layouts differ. */
static uint64_t lay_out(const struct step *step, struct place *places, struct plan *plan)
{
    uint64_t total = 0;

    for (unsigned i = 0; i < step_operands(step); i++) {
        struct place *p = &places[i];
        const size_t element = dtype_size(step_dtype(step, i));
        uint64_t bytes = step->operands[i].extent;

        if (!p->staged)
            continue;
        p->layout = layout_of(plan, i);
        memcpy(p->strides, p->layout.strides, sizeof(p->strides));
        p->packed =
            p->same_as == i && !p->shared && p->registered.registered && p->layout.count * element < bytes / SPARSE;
        if (p->packed) {
            bytes = p->layout.count * element;
            pack(&p->layout, p->strides);
            restride(&p->layout, p->strides);
        }
        if (p->same_as != i)
            continue;
        p->offset = total;
        total += (bytes + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
    }
    settle(plan, step_operands(step));
    return total;
}

/* Adds a transfer between the mapping and the device: of the whole extent, or with `elements` of the elements alone. */
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
    copy = copy_of(&place->layout, to_device ? here : there, to_device ? there : here);
    if (cuda_ops_copy(&copy, element, to_device ? mapped : address, to_device ? address : mapped, t->launch, e) < 0)
        return -1;
    return cuda_embedded_get(kernels, t->launch->kernel, &t->function, e);
}

static int plan_transfers(const struct cuda_embedded *kernels, const struct step *step, const struct place *places,
                          struct cuda_staging *staging, const uint64_t *addresses, struct error *e)
{
    for (unsigned i = 0; i < step_operands(step); i++) {
        const struct step_operand *o = &step->operands[i];
        const struct place *p = &places[i];
        const size_t element = dtype_size(step_dtype(step, i));
        /* Bytes between an output's elements are not the output's, so they are not written. */
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

static int place_operands(const struct cuda_embedded *kernels, const struct cuda_queue *q, const struct step *step,
                          struct cuda_staging *staging, struct plan *plan, uint64_t *addresses, struct error *e)
{
    struct place places[STEP_MAX_OPERANDS];
    CUdeviceptr memory;
    uint64_t total;

    find_places(step, places);
    for (unsigned i = 0; i < step_operands(step); i++)
        if (places[i].staged &&
            cuda_register(q->device, cuda_operand_memory(&step->operands[i]), &places[i].registered, e) < 0)
            return -1;
    total = lay_out(step, places, plan);
    if (take_memory(q, step, staging, total, &memory, e) < 0)
        return -1;
    for (unsigned i = 0; i < step_operands(step); i++)
        if (places[i].staged)
            addresses[i] = memory + places[places[i].same_as].offset;
    return plan_transfers(kernels, step, places, staging, addresses, e);
}

/* Makes a single launch of the transfers, if they have few bytes. */
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
    const int r = step->plan.kind == PLAN_KERNEL ? place_ranges(q, step, staging, addresses, e)
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

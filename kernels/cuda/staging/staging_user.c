/* Staging for users' kernels.
 *
 * A kernel may read its outputs and need not write all of them, so every operand is copied to the device, and outputs
 * are copied back. Operands keep their layout, and their place relative to each other where they overlap. The bytes
 * between the elements of a strided output belong to others, whose jobs may write them meanwhile: memory with such an
 * output is not copied, and the kernel works on it in place. */
#include "driver/scratch.h"
#include "memory/operand.h"
#include "memory/registration.h"
#include "staging.h"

enum { SCRATCH_ALIGNMENT = 512 };

/* Bytes of one memory that overlapping operands share, [start, end). */
struct range {
    struct backend_memory *memory;
    uint64_t start, end;
    bool in_place;      /* it is not copied */
    CUdeviceptr mapped; /* its start in the memory, for kernels; 0: the memory is not registered */
    uint64_t address;   /* of its start, for the kernel */
};

struct ranges {
    unsigned n;
    struct range items[STEP_MAX_OPERANDS];
};

static bool overlap(const struct range *a, const struct range *b)
{
    return a->memory == b->memory && a->start < b->end && b->start < a->end;
}

/* Merges the range with those that it overlaps. The merged range may overlap more, so the search starts again. */
static void add_range(struct ranges *all, struct range added)
{
    for (unsigned i = 0; i < all->n;) {
        const struct range *r = &all->items[i];

        if (!overlap(r, &added)) {
            i++;
            continue;
        }
        added.start = r->start < added.start ? r->start : added.start;
        added.end = r->end > added.end ? r->end : added.end;
        added.in_place |= r->in_place;
        all->items[i] = all->items[--all->n];
        i = 0;
    }
    all->items[all->n++] = added;
}

static void find_ranges(const struct step *step, struct ranges *all)
{
    all->n = 0;
    for (unsigned i = 0; i < step_operands(step); i++) {
        const struct step_operand *o = &step->operands[i];

        if (cuda_operand_is_staged(o))
            add_range(all, (struct range){.memory = cuda_operand_memory(o),
                                          .start = o->offset,
                                          .end = o->offset + o->extent,
                                          .in_place = i >= step->n_inputs && (step->plan.kernel.sparse >> i & 1)});
    }
}

/* Registers the ranges' memory, gives each range its place in the scratch memory, and returns the size that it must
 * have. A place is aligned as the range is in its memory, because the tensors' alignment was checked there. */
static int lay_out(struct cuda_device *d, struct ranges *all, uint64_t *ret_total, struct error *e)
{
    uint64_t total = 0;

    for (unsigned i = 0; i < all->n; i++) {
        struct range *r = &all->items[i];
        struct cuda_registered registered;

        if (cuda_register(d, r->memory, &registered, e) < 0)
            return -1;
        r->mapped = registered.registered ? registered.on_device + r->start : 0;
        if (r->in_place) {
            r->address = r->mapped; /* writable memory is registered */
            continue;
        }
        total = (total + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT + r->start % SCRATCH_ALIGNMENT;
        r->address = total;
        total += r->end - r->start;
    }
    *ret_total = total;
    return 0;
}

static struct cuda_transfer transfer(const struct range *r, uint64_t offset, uint64_t extent)
{
    return (struct cuda_transfer){.host = r->memory->host + offset,
                                  .mapped = r->mapped ? r->mapped + (offset - r->start) : 0,
                                  .device = r->address + (offset - r->start),
                                  .extent = extent};
}

static const struct range *range_of(const struct ranges *all, const struct step_operand *o)
{
    const struct range wanted = {.memory = cuda_operand_memory(o), .start = o->offset, .end = o->offset + o->extent};
    unsigned i = 0;

    while (!overlap(&all->items[i], &wanted))
        i++;
    return &all->items[i];
}

int cuda_staging_place_kernel(const struct cuda_queue *q, const struct step *step, struct cuda_staging *staging,
                              uint64_t *addresses, struct error *e)
{
    struct cuda_device *d = q->device;
    CUdeviceptr memory = 0;
    struct ranges all;
    uint64_t total;

    find_ranges(step, &all);
    if (lay_out(d, &all, &total, e) < 0)
        return -1;
    if (total && cuda_staging_take(q, step, staging, total, &memory, e) < 0)
        return -1;
    for (unsigned i = 0; i < all.n; i++) {
        struct range *r = &all.items[i];

        if (r->in_place)
            continue;
        r->address += memory;
        staging->in[staging->n_in++] = transfer(r, r->start, r->end - r->start);
    }
    for (unsigned i = 0; i < step_operands(step); i++) {
        const struct step_operand *o = &step->operands[i];
        const struct range *r = cuda_operand_is_staged(o) ? range_of(&all, o) : NULL;

        if (!r)
            continue;
        addresses[i] = r->address + (o->offset - r->start);
        if (i >= step->n_inputs && !r->in_place)
            staging->out[staging->n_out++] = transfer(r, o->offset, o->extent);
    }
    return 0;
}

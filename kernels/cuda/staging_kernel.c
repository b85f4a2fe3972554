/* Staging for users' kernels.
 *
 * A kernel may read what it writes and need not write everything, so every operand goes to the device, and what is
 * written comes back. Operands keep their layout and their place relative to each other where they overlap. The gaps of
 * a strided tensor are not the kernel's, and somebody else's job may write there meanwhile: memory with such an output
 * is not copied, the kernel reaches it where it is. */
#include <string.h>

#include "device.h"
#include "pin.h"
#include "staging.h"
#include "stream.h"

enum { SCRATCH_ALIGNMENT = 512 };

/* Bytes of one memory that overlapping operands share, [start, end). */
struct range {
    struct backend_memory *memory;
    uint64_t start, end;
    bool in_place;    /* it is not copied */
    uint64_t address; /* where its start is for the kernel */
};

struct ranges {
    unsigned n;
    struct range items[STEP_MAX_OPERANDS];
};

static bool is_staged(const struct backend_operand *o)
{
    return o->memory && o->memory->kind == MEMORY_MEMFD && o->extent > 0;
}

static bool overlap(const struct range *a, const struct range *b)
{
    return a->memory == b->memory && a->start < b->end && b->start < a->end;
}

/* Takes in what it overlaps, which can make it overlap more. */
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

static void find_ranges(const struct backend_step *step, struct ranges *all)
{
    all->n = 0;
    for (unsigned i = 0; i < step->op->n_inputs + step->op->n_outputs; i++) {
        const struct backend_operand *o = &step->operands[i];

        if (is_staged(o))
            add_range(all, (struct range){.memory = o->memory,
                                          .start = o->offset,
                                          .end = o->offset + o->extent,
                                          .in_place = i >= step->op->n_inputs && (step->plan.kernel.sparse >> i & 1)});
    }
}

/* Pins the ranges' memory and gives each its place in the scratch, whose size is returned. A place is aligned as the
 * range is in its memory: that is what the tensors' alignment was checked against. */
static int lay_out(struct cuda_device *d, struct ranges *all, uint64_t *ret_total, struct error *e)
{
    uint64_t total = 0;

    for (unsigned i = 0; i < all->n; i++) {
        struct range *r = &all->items[i];
        struct cuda_pin_view pin;

        if (cuda_pin(d, r->memory, &pin, e) < 0)
            return -1;
        if (r->in_place) {
            r->address = pin.on_device + r->start; /* what is written is registered */
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
    return (struct cuda_transfer){
        .host = r->memory->host + offset, .device = r->address + (offset - r->start), .extent = extent};
}

static const struct range *range_of(const struct ranges *all, const struct backend_operand *o)
{
    const struct range wanted = {.memory = o->memory, .start = o->offset, .end = o->offset + o->extent};
    unsigned i = 0;

    while (!overlap(&all->items[i], &wanted))
        i++;
    return &all->items[i];
}

int cuda_staging_prepare_kernel(struct cuda_stream *stream, const struct backend_step *step,
                                struct cuda_staging *staging, uint64_t *addresses, struct error *e)
{
    struct cuda_device *d = stream->device;
    struct ranges all;
    uint64_t total;

    staging->active = true;
    find_ranges(step, &all);
    if (lay_out(d, &all, &total, e) < 0)
        return -1;
    if (total && cuda_staging_scratch(stream, total, &staging->scratch, e) < 0)
        return -1;
    for (unsigned i = 0; i < all.n; i++) {
        struct range *r = &all.items[i];

        if (r->in_place)
            continue;
        r->address += staging->scratch;
        staging->in[staging->n_in++] = transfer(r, r->start, r->end - r->start);
    }
    for (unsigned i = 0; i < step->op->n_inputs + step->op->n_outputs; i++) {
        const struct backend_operand *o = &step->operands[i];
        const struct range *r = is_staged(o) ? range_of(&all, o) : NULL;

        if (!r)
            continue;
        addresses[i] = r->address + (o->offset - r->start);
        if (i >= step->op->n_inputs && !r->in_place)
            staging->out[staging->n_out++] = transfer(r, o->offset, o->extent);
    }
    return 0;
}

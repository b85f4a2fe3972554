#include "copies.h"

#include <string.h>

#include "driver/scratch.h"
#include "memory/operand.h"
#include "memory/peer.h"

/* Addresses keep their place within this many bytes, so that a kernel loads as many elements at once as it would. */
enum { ALIGNMENT = 512 };

/* ---- which bytes ---- */

static bool touches(const struct cuda_copy *a, const struct cuda_copy *b)
{
    return a->memory == b->memory && a->start < b->end && b->start < a->end;
}

/* Adds a piece, as one with those that it overlaps. */
static void add(struct cuda_copies *c, struct cuda_copy piece)
{
    for (unsigned i = 0; i < c->n;) {
        const struct cuda_copy *other = &c->of[i];

        if (!touches(&piece, other)) {
            i++;
            continue;
        }
        piece.start = other->start < piece.start ? other->start : piece.start;
        piece.end = other->end > piece.end ? other->end : piece.end;
        piece.read = piece.read || other->read;
        piece.written = piece.written || other->written;
        c->of[i] = c->of[--c->n];
        i = 0; /* it may overlap others now */
    }
    c->of[c->n++] = piece;
}

/* Whether an execution finds there what the one before has written. */
static bool is_restored(const struct cuda_copy *c)
{
    return c->read && c->written;
}

static bool is_read(const struct step *step, unsigned operand)
{
    if (operand < step->n_inputs)
        return true;
    if (step->plan.kind == PLAN_KERNEL)
        return step->plan.kernel.inout >> operand & 1;
    return step->plan.kind == PLAN_GEMM && step->plan.gemm.beta != 0;
}

static int list(struct cuda_copies *c, const struct step *step, struct error *e)
{
    c->n = 0;
    c->bytes = 0;
    for (unsigned i = 0; i < step_operands(step); i++) {
        const struct step_operand *o = &step->operands[i];

        if (o->extent && cuda_operand_memory(o))
            add(c, (struct cuda_copy){.memory = o->memory,
                                      .start = o->offset,
                                      .end = o->offset + o->extent,
                                      .read = is_read(step, i),
                                      .written = i >= step->n_inputs});
    }
    for (unsigned i = 0; i < c->n; i++)
        c->bytes += (c->of[i].end - c->of[i].start) * (is_restored(&c->of[i]) ? 2 : 1);
    if (c->bytes <= COPIES_BYTES_MAX)
        return 0;
    error_set(e, ERROR_LIMIT_EXCEEDED,
              "counters work on copies of the operands, two of each that is read and written: %llu MiB in all here, "
              "and at most %llu; use smaller tensors",
              (unsigned long long)(c->bytes >> 20), (unsigned long long)(COPIES_BYTES_MAX >> 20));
    error_detail_number(e, "limit", (int64_t)COPIES_BYTES_MAX);
    return error_detail_number(e, "value", (int64_t)c->bytes);
}

/* ---- the copies ---- */

static int copy(const struct cuda_queue *q, CUdeviceptr to, CUdeviceptr from, uint64_t bytes, struct error *e)
{
    return CUDA_CALL(q->device, e, MemcpyDtoDAsync, to, from, bytes, q->stream);
}

static int fill(const struct cuda_queue *q, const struct cuda_copy *c, struct error *e)
{
    struct backend_memory *memory = memory_by_id(c->memory);

    if (memory->kind == MEMORY_MEMFD)
        return CUDA_CALL(q->device, e, MemcpyHtoDAsync, c->work, memory->host + c->start, c->end - c->start, q->stream);
    return copy(q, c->work, cuda_peer_address(q->device, memory) + c->start, c->end - c->start, e);
}

static uint64_t place_of(const struct cuda_device *d, const struct cuda_copy *c)
{
    struct backend_memory *memory = memory_by_id(c->memory);
    const uint64_t base = memory->kind == MEMORY_MEMFD ? 0 : cuda_peer_address(d, memory);

    return (base + c->start) % ALIGNMENT;
}

static int make_one(const struct cuda_queue *q, struct cuda_copy *c, struct error *e)
{
    const uint64_t bytes = c->end - c->start, place = place_of(q->device, c);

    if (cuda_scratch_alloc(q->device, q->stream, bytes + 2 * ALIGNMENT, &c->allocation, e) < 0)
        return -1;
    c->work = (c->allocation + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + place;
    if (is_restored(c) && cuda_scratch_alloc(q->device, q->stream, bytes, &c->master, e) < 0)
        return -1;
    if (fill(q, c, e) < 0)
        return -1;
    return c->master ? copy(q, c->master, c->work, bytes, e) : 0;
}

static uint64_t address_of(const struct cuda_copies *c, const struct step_operand *o)
{
    for (unsigned i = 0; i < c->n; i++)
        if (c->of[i].memory == o->memory && o->offset >= c->of[i].start && o->offset < c->of[i].end)
            return c->of[i].work + (o->offset - c->of[i].start);
    return 0;
}

int cuda_copies_make(struct cuda_copies *c, const struct cuda_queue *q, const struct step *step,
                     uint64_t addresses[STEP_MAX_OPERANDS], struct error *e)
{
    memset(addresses, 0, STEP_MAX_OPERANDS * sizeof(addresses[0]));
    if (!cuda_scratch_is_there(q->device) || !CUDA_HAS(MemcpyDtoDAsync))
        return error_set(e, ERROR_UNSUPPORTED, "%s has no memory pools, so operands cannot be copied for counters",
                         q->device->base.info.name);
    if (list(c, step, e) < 0)
        return -1;
    for (unsigned i = 0; i < c->n; i++)
        if (make_one(q, &c->of[i], e) < 0)
            return -1;
    for (unsigned i = 0; i < step_operands(step); i++)
        if (step->operands[i].extent)
            addresses[i] = address_of(c, &step->operands[i]);
    return 0;
}

int cuda_copies_restore(const struct cuda_copies *c, const struct cuda_queue *q, struct error *e)
{
    for (unsigned i = 0; i < c->n; i++)
        if (c->of[i].master && copy(q, c->of[i].work, c->of[i].master, c->of[i].end - c->of[i].start, e) < 0)
            return -1;
    return 0;
}

void cuda_copies_free(struct cuda_copies *c, const struct cuda_queue *q)
{
    for (unsigned i = 0; i < c->n; i++) {
        cuda_scratch_free(q->device, q->stream, c->of[i].allocation);
        cuda_scratch_free(q->device, q->stream, c->of[i].master);
    }
    c->n = 0;
}

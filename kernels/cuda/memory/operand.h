/* From an operand of a step to its memory and its address: nothing else in this backend follows an operand's
 * reference to memory. Thread: any. */
#ifndef KOPS_CUDA_OPERAND_H
#define KOPS_CUDA_OPERAND_H

#include "backend/memory_ids.h"
#include "driver/device.h"

/* NULL for an empty tensor that lies nowhere. */
static inline struct backend_memory *cuda_operand_memory(const struct step_operand *o)
{
    return memory_by_id(o->memory);
}

/* Whether the operand's bytes are in shared host memory, so that a job copies them. */
static inline bool cuda_operand_is_staged(const struct step_operand *o)
{
    const struct backend_memory *memory = cuda_operand_memory(o);

    return memory && memory->kind == MEMORY_MEMFD && o->extent > 0;
}

bool cuda_step_is_staged(const struct step *step);

/* The operands' addresses for jobs of `d`, which has access; 0 for an operand without device memory, and behind the
 * last one. */
void cuda_step_addresses(const struct cuda_device *d, const struct step *step, uint64_t addresses[STEP_MAX_OPERANDS]);

/* Addresses before `d` was given access: only their alignment means something. */
void cuda_step_alignments(const struct step *step, uint64_t addresses[STEP_MAX_OPERANDS]);

/* Whether `d` has access to all operands; gives it access. Errors and context as cuda_peer_allow(). */
bool cuda_step_has_access(const struct cuda_device *d, const struct step *step);
int cuda_step_allow(struct cuda_device *d, const struct step *step, struct error *e);

/* Bytes [start, end) of one memory, which overlapping operands share. */
struct cuda_range {
    struct backend_memory *memory;
    uint64_t start, end;
    unsigned flags; /* the caller's, of all operands together */
};

static inline bool cuda_ranges_overlap(const struct cuda_range *a, const struct cuda_range *b)
{
    return a->memory == b->memory && a->start < b->end && b->start < a->end;
}

/* The operand's bytes, without flags. */
struct cuda_range cuda_operand_range(const struct step_operand *o);

/* Adds a range, merged with all that it overlaps. Returns the new number of ranges. */
unsigned cuda_ranges_add(struct cuda_range *all, unsigned n, struct cuda_range added);

/* The address of the signal's word for `d`; memory_attach() attached its page. */
CUdeviceptr cuda_signal_address(const struct cuda_device *d, const struct backend_signal *signal);

#endif

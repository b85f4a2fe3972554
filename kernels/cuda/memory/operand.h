/* Memory and addresses of a step's operands. All of this backend's uses of an operand's reference go through here.
 * Thread: any. */
#ifndef KOPS_CUDA_OPERAND_H
#define KOPS_CUDA_OPERAND_H

#include "backend/memory.h"
#include "driver/device.h"

/* Returns NULL for an empty tensor without memory. */
static inline struct backend_memory *cuda_operand_memory(const struct step_operand *o)
{
    return memory_by_id(o->memory);
}

/* Whether the operand is in shared host memory, so that a job copies it. */
static inline bool cuda_operand_is_staged(const struct step_operand *o)
{
    const struct backend_memory *memory = cuda_operand_memory(o);

    return memory && memory->kind == MEMORY_MEMFD && o->extent > 0;
}

bool cuda_step_is_staged(const struct step *step);

/* Fills in the operands' addresses for jobs of `d`, which has access; 0 for an operand without device memory, and
 * behind the last operand. */
void cuda_step_addresses(const struct cuda_device *d, const struct step *step, uint64_t addresses[STEP_MAX_OPERANDS]);

/* Fills in addresses for use before a device has access: only their alignment is right. */
void cuda_step_alignments(const struct step *step, uint64_t addresses[STEP_MAX_OPERANDS]);

/* cuda_step_has_access(): whether `d` has access to all operands. cuda_step_allow() gives it access; errors and context
 * as cuda_peer_allow(). */
bool cuda_step_has_access(const struct cuda_device *d, const struct step *step);
int cuda_step_allow(struct cuda_device *d, const struct step *step, struct error *e);

/* Bytes [start, end) of a memory, which overlapping operands share. */
struct cuda_range {
    struct backend_memory *memory;
    uint64_t start, end;
    unsigned flags; /* the caller's flags of all operands in the range */
};

static inline bool cuda_ranges_overlap(const struct cuda_range *a, const struct cuda_range *b)
{
    return a->memory == b->memory && a->start < b->end && b->start < a->end;
}

/* Returns the operand's bytes, without flags. */
struct cuda_range cuda_operand_range(const struct step_operand *o);

/* Adds a range, merged with all ranges that it overlaps. Returns the new number of ranges. */
unsigned cuda_ranges_add(struct cuda_range *all, unsigned n, struct cuda_range added);

/* Returns the address of the signal's word for `d`, to which memory_attach() attached its page. */
CUdeviceptr cuda_signal_address(const struct cuda_device *d, const struct backend_signal *signal);

#endif

/* Memory and addresses of a step's operands, and registrations of shared memory. All of this backend's uses of an
 * operand's reference go through here. Thread: any. */
#ifndef KOPS_CUDA_OPERAND_H
#define KOPS_CUDA_OPERAND_H

#include "backend/memory.h"
#include "driver/device.h"

/* ---- registrations ----
 *
 * Shared host memory that is registered with the driver (page-locked), so that the GPU copies it
 * directly. A registration belongs to one memfd mapping of the process; each device that uses the mapping has a
 * reference. Thread: any. */

struct cuda_registered {
    bool registered;       /* false: copies from the mapping block, and the GPU cannot write to it */
    CUdeviceptr on_device; /* the address for kernels; only when registered */
};

/* Registers the mapping, if it is not registered yet, and attaches it to the device. A read-only mapping stays
 * unregistered where the device cannot register read-only memory. The context is current. */
int cuda_register(struct cuda_device *d, struct backend_memory *memory, struct cuda_registered *ret, struct error *e);

/* Whether cuda_register() has nothing to do and does not block. The caller keeps the mapping open. */
bool cuda_is_registered(const struct cuda_device *d, const struct backend_memory *memory);

/* Functions of struct backend. */
int cuda_memory_attach(struct backend_device *base, struct backend_memory *memory, struct error *e);
void cuda_memory_detach(struct backend_device *base, struct backend_memory *memory);

/* ---- operands ---- */

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

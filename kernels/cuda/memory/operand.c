#include "operand.h"

#include "mapping.h"
#include "registration.h"

bool cuda_step_is_staged(const struct step *step)
{
    for (unsigned i = 0; i < step_operands(step); i++)
        if (cuda_operand_is_staged(&step->operands[i]))
            return true;
    return false;
}

void cuda_step_addresses(const struct cuda_device *d, const struct step *step, uint64_t addresses[STEP_MAX_OPERANDS])
{
    const unsigned operands = step_operands(step);

    for (unsigned i = 0; i < STEP_MAX_OPERANDS; i++) {
        struct backend_memory *memory = i < operands ? cuda_operand_memory(&step->operands[i]) : NULL;

        addresses[i] = memory ? cuda_peer_address(d, memory) + step->operands[i].offset : 0;
    }
}

void cuda_step_alignments(const struct step *step, uint64_t addresses[STEP_MAX_OPERANDS])
{
    const unsigned operands = step_operands(step);

    for (unsigned i = 0; i < operands; i++) {
        const struct backend_memory *memory = cuda_operand_memory(&step->operands[i]);

        addresses[i] = (memory ? memory->address : 0) + step->operands[i].offset;
    }
}

struct backend_memory *cuda_step_find_peer(const struct cuda_device *d, const struct step *step)
{
    for (unsigned i = 0; i < step_operands(step); i++) {
        struct backend_memory *memory = cuda_operand_memory(&step->operands[i]);

        if (!cuda_peer_has_access(d, memory))
            return memory;
    }
    return NULL;
}

CUdeviceptr cuda_signal_address(const struct cuda_device *d, const struct backend_signal *signal)
{
    return cuda_registered_address(d, signal->page) + signal->offset;
}

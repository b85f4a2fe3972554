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

bool cuda_step_has_access(const struct cuda_device *d, const struct step *step)
{
    for (unsigned i = 0; i < step_operands(step); i++)
        if (!cuda_peer_has_access(d, cuda_operand_memory(&step->operands[i])))
            return false;
    return true;
}

int cuda_step_allow(struct cuda_device *d, const struct step *step, struct error *e)
{
    for (unsigned i = 0; i < step_operands(step); i++)
        if (cuda_peer_allow(d, cuda_operand_memory(&step->operands[i]), e) < 0)
            return -1;
    return 0;
}

struct cuda_range cuda_operand_range(const struct step_operand *o)
{
    return (struct cuda_range){.memory = cuda_operand_memory(o), .start = o->offset, .end = o->offset + o->extent};
}

unsigned cuda_ranges_add(struct cuda_range *all, unsigned n, struct cuda_range added)
{
    for (unsigned i = 0; i < n;) {
        const struct cuda_range *r = &all[i];

        if (!cuda_ranges_overlap(r, &added)) {
            i++;
            continue;
        }
        added.start = r->start < added.start ? r->start : added.start;
        added.end = r->end > added.end ? r->end : added.end;
        added.flags |= r->flags;
        all[i] = all[--n];
        i = 0; /* start again, since the merged range may overlap others */
    }
    all[n++] = added;
    return n;
}

CUdeviceptr cuda_signal_address(const struct cuda_device *d, const struct backend_signal *signal)
{
    return cuda_registered_address(d, signal->page) + signal->offset;
}

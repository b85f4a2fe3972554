/* Owns nothing: the memory is the step's. */
#include "transfer.h"

#include <string.h>

#include "driver/device.h"
#include "memory/operand.h"
#include "memory/registration.h"

const char cuda_variant_transfer[] = "transfer";

/* The operand in host memory; the other one is on the device. */
static const struct step_operand *on_host(const struct step *step)
{
    return cuda_operand_is_staged(&step->operands[0]) ? &step->operands[0] : &step->operands[1];
}

bool cuda_transfer_is_forced(const struct step *step)
{
    return step_variant(step) && strcmp(step_variant(step), cuda_variant_transfer) == 0;
}

int cuda_transfer_refuse(struct error *e)
{
    error_set(e, ERROR_INVALID_ARGUMENT,
              "variant \"%s\" is for a tensor in host memory and one on the device, both contiguous; leave it out",
              cuda_variant_transfer);
    return error_detail_text(e, "variant", cuda_variant_transfer);
}

bool cuda_transfer_fits(const struct step *step)
{
    if (step->op != OP_COPY || !step->plan.elementwise.contiguous || plan_is_empty(&step->plan))
        return false;
    if (step_variant(step) && !cuda_transfer_is_forced(step))
        return false;
    return cuda_operand_is_staged(&step->operands[0]) != cuda_operand_is_staged(&step->operands[1]);
}

bool cuda_transfer_is_ready(const struct cuda_device *d, const struct step *step)
{
    return cuda_is_registered(d, cuda_operand_memory(on_host(step)));
}

int cuda_transfer_take(struct cuda_device *d, const struct step *step, struct cuda_work *work, struct error *e)
{
    const struct step_operand *host = on_host(step);
    struct backend_memory *memory = cuda_operand_memory(host);
    struct cuda_registered registered;

    if (!cuda_transfer_fits(step))
        return 0;
    if (cuda_register(d, memory, &registered, e) < 0)
        return -1;
    if (!registered.registered) /* such a copy would block */
        return cuda_transfer_is_forced(step)
                   ? error_set(e, ERROR_UNSUPPORTED, "%s cannot register host memory that is only to be read",
                               d->base.info.name)
                   : 0;
    work->host = memory->host + host->offset;
    work->host_bytes = host->extent;
    work->to_device = host == &step->operands[0];
    work->variant = cuda_variant_transfer;
    return 1;
}

int cuda_transfer_issue(const struct cuda_queue *q, const struct cuda_work *work, struct error *e)
{
    if (work->to_device)
        return CUDA_CALL(q->device, e, MemcpyHtoDAsync, work->addresses[1], work->host, work->host_bytes, q->stream);
    return CUDA_CALL(q->device, e, MemcpyDtoHAsync, work->host, work->addresses[0], work->host_bytes, q->stream);
}

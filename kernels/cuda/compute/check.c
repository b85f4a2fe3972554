/* Refuses steps that a forced variant or the device cannot do. */
#include "check.h"

#include <string.h>

#include "blaslt/blaslt.h"
#include "embedded.h"
#include "memory/operand.h"
#include "repack.h"
#include "repack_sketch.h"
#include "transfer.h"
#include "user_kernel.h"
#include "variants.h"

/* A forced variant must be able to run this plan. Memory that is not mapped yet is taken to be aligned as allocations
 * are. */
static int check_forced(const struct backend_device_info *info, const struct step *step, struct error *e)
{
    const struct cuda_ops_device device = cuda_embedded_device(info);
    uint64_t addresses[STEP_MAX_OPERANDS];
    struct cuda_launch launch;

    if (strcmp(step_variant(step), cuda_variant_blaslt) == 0)
        return blaslt_check(&step->plan, e);
    if (cuda_repack_variant(step_variant(step)))
        return repack_check(&step->plan, step_variant(step), e);
    /* Where the operands lie is seen when their memory is open. */
    if (cuda_transfer_is_forced(step))
        return step->plan.elementwise.contiguous ? 0 : cuda_transfer_refuse(e);
    cuda_step_alignments(step, addresses);
    return cuda_ops_launch((enum op_id)step->op, &step->plan, addresses, step_variant(step), &device, &launch, e);
}

int cuda_check_step(struct backend_device *base, const struct step *step, struct error *e)
{
    const struct backend_device_info *info = &base->info;

    if (step->plan.kind == PLAN_KERNEL && cuda_user_check(info, &step->plan, e) < 0)
        return -1;
    if (plan_is_empty(&step->plan))
        return 0;
    return step_variant(step) && step->plan.kind != PLAN_KERNEL ? check_forced(info, step, e) : 0;
}

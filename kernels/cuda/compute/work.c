/* Owns the choice among cuBLASLt's, embedded and users' kernels, and their launch. */
#include "work.h"

#include <string.h>

#include "blaslt/blaslt.h"
#include "driver/device.h"
#include "kernels.h"
#include "transfer.h"
#include "user_kernel.h"

/* Whether cuBLASLt is to be tried: it serves gemm, unless another variant is forced. */
static bool wants_blaslt(const struct cuda_kernels *k, const struct step *step, const struct plan *plan)
{
    struct error ignored;

    if (!k->blaslt || plan->kind != PLAN_GEMM || blaslt_is_absent(k->blaslt))
        return false;
    if (step_variant(step) && strcmp(step_variant(step), cuda_variant_blaslt) != 0)
        return false;
    return blaslt_check(plan, &ignored) == 0;
}

int cuda_work_prepare_own(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work,
                          struct error *e)
{
    const struct cuda_ops_device device = cuda_embedded_device(&k->device->base.info);

    cuda_work_release(work);
    if (work->plan->kind == PLAN_KERNEL) {
        cuda_user_launch(&work->plan->kernel, work->addresses, &work->launch);
        work->variant = cuda_variant_user;
        return 0;
    }
    if (cuda_transfer_is_forced(step))
        return cuda_transfer_refuse(e);
    if (cuda_ops_launch((enum op_id)step->op, work->plan, work->addresses, step_variant(step), &device, &work->launch,
                        e) < 0)
        return -1;
    work->function = cuda_embedded_find(&k->embedded, work->launch.kernel);
    if (!work->function)
        return error_set(e, ERROR_INTERNAL, "no embedded binary has the kernel %s", work->launch.kernel);
    work->variant = work->launch.variant;
    return cuda_embedded_encode(&work->launch, e);
}

int cuda_work_prepare(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work, struct error *e)
{
    if (wants_blaslt(k, step, work->plan)) {
        if (blaslt_plan_get(k->blaslt, work->plan, work->addresses, &work->blaslt, e) == 0) {
            work->variant = cuda_variant_blaslt;
            return 0;
        }
        /* The library has no algorithm for the plan, or no memory to start: the embedded kernel always works. */
        if (step_variant(step) || cuda_device_is_broken(k->device))
            return -1;
    }
    return cuda_work_prepare_own(k, step, work, e);
}

bool cuda_work_is_ready(const struct cuda_kernels *k, const struct step *step, const uint64_t *addresses)
{
    return !wants_blaslt(k, step, &step->plan) || blaslt_plan_is_cached(k->blaslt, &step->plan, addresses);
}

int cuda_work_issue(const struct cuda_queue *q, struct cuda_work *work, struct error *e)
{
    if (work->host)
        return cuda_transfer_issue(q, work, e);
    if (work->plan->kind == PLAN_KERNEL)
        return cuda_user_issue(q, &work->plan->kernel, &work->launch, e);
    if (!work->blaslt)
        return cuda_embedded_launch(q, work->function, &work->launch, e);
    return blaslt_plan_run(q, work->blaslt, work->plan, work->addresses, e);
}

void cuda_work_release(struct cuda_work *work)
{
    work->blaslt = blaslt_plan_unref(work->blaslt);
}

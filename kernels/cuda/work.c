/* Owns the choice between cuBLASLt and our own kernels, and their launch; users' kernels are code.c's. */
#include "work.h"

#include <string.h>

#include "blaslt.h"
#include "code.h"
#include "device.h"
#include "peer.h"
#include "stream.h"

void cuda_step_addresses(const struct cuda_device *d, const struct backend_step *step,
                         uint64_t addresses[STEP_MAX_OPERANDS])
{
    const unsigned operands = step->op->n_inputs + step->op->n_outputs;

    for (unsigned i = 0; i < STEP_MAX_OPERANDS; i++) {
        const struct backend_operand *o = &step->operands[i];

        addresses[i] = i < operands && o->memory ? cuda_peer_address(d, o->memory) + o->offset : 0;
    }
}

/* Whether cuBLASLt is to be tried: it serves gemm, unless another variant is forced. */
static bool wants_blaslt(const struct cuda_device *d, const struct backend_step *step, const struct plan *plan)
{
    struct error ignored;

    if (!d->blaslt || plan->kind != PLAN_GEMM)
        return false;
    if (step->variant && strcmp(step->variant, cuda_variant_blaslt) != 0)
        return false;
    return blaslt_check(plan, &ignored) == 0;
}

int cuda_work_prepare_own(struct cuda_device *d, const struct backend_step *step, struct cuda_work *work,
                          struct error *e)
{
    cuda_work_release(work);
    if (work->plan->kind == PLAN_KERNEL) {
        cuda_code_prepare(work);
        return 0;
    }
    if (cuda_ops_launch(step->op->id, work->plan, work->addresses, step->variant, &d->launch, &work->launch, e) < 0)
        return -1;
    work->function = cuda_kernels_find(&d->kernels, work->launch.kernel);
    if (!work->function)
        return error_set(e, ERROR_INTERNAL, "no embedded image has the kernel %s", work->launch.kernel);
    work->variant = work->launch.variant;
    return 0;
}

int cuda_work_prepare(struct cuda_device *d, const struct backend_step *step, struct cuda_work *work, struct error *e)
{
    if (wants_blaslt(d, step, work->plan)) {
        if (blaslt_plan_get(d, work->plan, work->addresses, &work->blaslt, e) == 0) {
            work->variant = cuda_variant_blaslt;
            return 0;
        }
        /* The library has no algorithm for it, or no memory to start: ours always works. */
        if (step->variant || cuda_device_is_broken(d))
            return -1;
    }
    return cuda_work_prepare_own(d, step, work, e);
}

bool cuda_work_is_ready(struct cuda_device *d, const struct backend_step *step, const uint64_t *addresses)
{
    return !wants_blaslt(d, step, &step->plan) || blaslt_plan_is_cached(d, &step->plan, addresses);
}

static int issue_own(struct cuda_stream *stream, struct cuda_work *work, struct error *e)
{
    const struct cuda_launch *l = &work->launch;
    void *params[] = {work->launch.params};

    return CUDA_CALL(stream->device, e, LaunchKernel, work->function, l->grid[0], l->grid[1], l->grid[2], l->block[0],
                     l->block[1], l->block[2], l->shared_bytes, stream->stream, params, NULL);
}

int cuda_work_issue(struct cuda_stream *stream, struct cuda_work *work, struct error *e)
{
    if (work->plan->kind == PLAN_KERNEL)
        return cuda_code_issue(stream, work, e);
    if (!work->blaslt)
        return issue_own(stream, work, e);
    return blaslt_plan_run(stream, work->blaslt, work->plan, work->addresses, e);
}

void cuda_work_release(struct cuda_work *work)
{
    work->blaslt = blaslt_plan_unref(work->blaslt);
}

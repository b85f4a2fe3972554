/* Owns the choice among cuBLASLt's, embedded and users' kernels, and their launch. */
#include "work.h"

#include <stdlib.h>
#include <string.h>

#include "blaslt/blaslt.h"
#include "driver/device.h"
#include "kernels.h"
#include "memory/operand.h"
#include "repack_sketch.h"
#include "user_kernel.h"

/* ---- gemms of more than one launch ----
 *
 * Operands are first copied to aligned rows or split into pieces, or the product is activated by a second kernel
 * (repack_sketch.h). The copies lie in the queue's scratch memory, which its products share, since they run one after
 * the other. */

struct means {
    CUfunction function; /* a copy, or the activation of the product; unused where `blaslt` is set */
    struct cuda_launch launch;
    struct blaslt_plan *blaslt; /* a product: a reference; or NULL */
};

struct cuda_repack {
    struct repack_sketch sketch;
    struct means means[];
};

/* Returns the variant of that name; NULL: no variant of several launches has the name. */
static const char *cuda_repack_variant(const char *name)
{
    static const char *const all[] = {repack_padded, repack_bf16x3, repack_bf16x6, repack_activated};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(all[i], name) == 0)
            return all[i];
    return NULL;
}

static int prepare_launch(const struct cuda_kernels *k, struct repack_action *a, struct means *m, struct error *e)
{
    if (a->kind == REPACK_COPY)
        cuda_ops_launch_repack(a->copy.kind, &a->copy.params, &m->launch);
    else
        cuda_ops_gelu(&a->gelu.all, a->gelu.dtype, a->gelu.address, &m->launch);
    return cuda_embedded_get(&k->embedded, m->launch.kernel, &m->function, e);
}

static bool find_algorithm(const struct cuda_kernels *k, const struct repack_action *a, bool may_block,
                           struct tuning_choice *ret)
{
    return cuda_tuned_find(k, &a->product.plan, a->product.addresses, may_block, ret) && ret->has_algorithm;
}

/* The scratch memory begins on a boundary of 256 bytes, so offsets have the alignment of addresses. */
static int prepare_product(const struct cuda_kernels *k, const struct repack_action *a, struct means *m,
                           struct cuda_work *work, struct error *e)
{
    struct tuning_choice choice;
    const bool tuned = find_algorithm(k, a, true, &choice);

    if (blaslt_plan_get(k->blaslt, &a->product.plan, a->product.addresses, tuned ? &choice : NULL, &m->blaslt, e) < 0)
        return -1;
    if (blaslt_plan_workspace(m->blaslt) > work->workspace)
        work->workspace = blaslt_plan_workspace(m->blaslt);
    return 0;
}

static int check(const struct cuda_kernels *k, const char *variant, struct error *e)
{
    if (k->blaslt && !blaslt_is_absent(k->blaslt) &&
        (k->device->repack_bytes || strcmp(variant, repack_activated) == 0))
        return 0;
    error_set(e, ERROR_INVALID_ARGUMENT, "variant \"%s\" needs cuBLASLt, and memory for copies: %s; leave it out",
              variant, k->device->repack_bytes ? "cuBLASLt is not there" : "[cuda] repack_bytes is 0");
    return error_detail_text(e, "variant", variant);
}

/* Prepares the work as a gemm of several launches. Errors: invalid_argument (the variant does not apply), unsupported,
 * out_of_memory, device_lost. Thread: any; may block when cuda_repack_is_ready() is false. The context is current. */
static int cuda_repack_prepare(const struct cuda_kernels *k, const char *variant, struct cuda_work *work,
                               struct error *e)
{
    struct repack_sketch sketch;
    struct cuda_repack *r;

    if (check(k, variant, e) < 0 ||
        repack_sketch(work->plan, work->addresses, variant, k->device->repack_bytes, &sketch, e) < 0)
        return -1;
    r = calloc(1, sizeof(*r) + sketch.n * sizeof(r->means[0]));
    if (!r) {
        repack_sketch_free(&sketch);
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the parts of a gemm");
    }
    r->sketch = sketch;
    work->repack = r;
    work->launches = 0;
    for (unsigned i = 0; i < sketch.n; i++) {
        struct repack_action *a = &sketch.actions[i];
        const bool product = a->kind == REPACK_PRODUCT;

        if (product ? prepare_product(k, a, &r->means[i], work, e) < 0 : prepare_launch(k, a, &r->means[i], e) < 0) {
            cuda_work_release(work);
            return -1;
        }
        work->launches += product ? blaslt_calls(&a->product.plan) : 1;
    }
    work->scratch = sketch.scratch_bytes;
    work->variant = variant;
    return 0;
}

static bool product_is_ready(const struct cuda_kernels *k, const struct repack_action *a)
{
    struct tuning_choice choice;
    const bool tuned = find_algorithm(k, a, false, &choice);

    return blaslt_plan_is_cached(k->blaslt, &a->product.plan, a->product.addresses, tuned ? &choice : NULL);
}

static bool cuda_repack_is_ready(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses,
                                 const char *variant)
{
    struct repack_sketch sketch;
    struct error ignored;
    bool ready = true;

    if (check(k, variant, &ignored) < 0 ||
        repack_sketch(plan, addresses, variant, k->device->repack_bytes, &sketch, &ignored) < 0)
        return true;
    for (unsigned i = 0; ready && i < sketch.n; i++) {
        const struct repack_action *a = &sketch.actions[i];

        ready = a->kind != REPACK_PRODUCT || product_is_ready(k, a);
    }
    repack_sketch_free(&sketch);
    return ready;
}

static int issue_copy(const struct cuda_queue *q, const struct repack_action *a, struct means *m, struct error *e)
{
    struct cuda_ops_repack params = a->copy.params;

    for (unsigned i = 0; i < CUDA_OPS_REPACK_PARTS; i++) {
        params.parts[i].from += a->copy.from_scratch[i] ? q->scratch : 0;
        params.parts[i].to += a->copy.to_scratch[i] ? q->scratch : 0;
    }
    memcpy(m->launch.params, &params, sizeof(params));
    return cuda_embedded_launch(q, m->function, &m->launch, e);
}

static int issue_product(const struct cuda_queue *q, const struct repack_action *a, const struct means *m,
                         struct error *e)
{
    uint64_t addresses[STEP_MAX_OPERANDS] = {0};

    for (unsigned i = 0; i < PLAN_MAX_OPERANDS; i++)
        addresses[i] = a->product.addresses[i] + (a->product.in_scratch[i] ? q->scratch : 0);
    return blaslt_plan_run(q, m->blaslt, &a->product.plan, addresses, e);
}

static int issue(const struct cuda_queue *q, const struct repack_action *a, struct means *m, struct error *e)
{
    switch (a->kind) {
    case REPACK_COPY:
        return issue_copy(q, a, m, e);
    case REPACK_PRODUCT:
        return issue_product(q, a, m, e);
    case REPACK_GELU:
        break;
    }
    return cuda_embedded_launch(q, m->function, &m->launch, e);
}

/* Thread: loop. */
static int cuda_repack_issue(const struct cuda_queue *q, struct cuda_repack *r, struct error *e)
{
    for (unsigned i = 0; i < r->sketch.n; i++)
        if (issue(q, &r->sketch.actions[i], &r->means[i], e) < 0)
            return -1;
    return 0;
}

/* NULL is allowed; returns NULL. */
static struct cuda_repack *cuda_repack_free(struct cuda_repack *r)
{
    if (!r)
        return NULL;
    for (unsigned i = 0; i < r->sketch.n; i++)
        r->means[i].blaslt = blaslt_plan_unref(r->means[i].blaslt);
    repack_sketch_free(&r->sketch);
    free(r);
    return NULL;
}

/* ---- transfers ---- */

const char cuda_variant_transfer[] = "transfer";

static const struct step_operand *on_host(const struct step *step)
{
    return cuda_operand_is_staged(&step->operands[0]) ? &step->operands[0] : &step->operands[1];
}

static bool transfer_is_forced(const struct step *step)
{
    return step_variant(step) && strcmp(step_variant(step), cuda_variant_transfer) == 0;
}

static int refuse_transfer(struct error *e)
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
    if (step_variant(step) && !transfer_is_forced(step))
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
    if (!registered.registered) /* a copy from or to unregistered memory would block */
        return transfer_is_forced(step)
                   ? error_set(e, ERROR_UNSUPPORTED, "%s cannot register host memory that is only to be read",
                               d->base.info.name)
                   : 0;
    work->host = memory->host + host->offset;
    work->host_bytes = host->extent;
    work->to_device = host == &step->operands[0];
    work->variant = cuda_variant_transfer;
    return 1;
}

static int issue_transfer(const struct cuda_queue *q, const struct cuda_work *work, struct error *e)
{
    if (work->to_device)
        return CUDA_CALL(q->device, e, MemcpyHtoDAsync, work->addresses[1], work->host, work->host_bytes, q->stream);
    return CUDA_CALL(q->device, e, MemcpyDtoHAsync, work->host, work->addresses[0], work->host_bytes, q->stream);
}

/* ---- the choice ---- */

/* cuBLASLt serves gemm, unless another variant is forced. */
static bool wants_blaslt(const struct cuda_kernels *k, const struct step *step, const struct plan *plan)
{
    struct error ignored;

    if (!k->blaslt || plan->kind != PLAN_GEMM || blaslt_is_absent(k->blaslt))
        return false;
    if (step_variant(step) && strcmp(step_variant(step), cuda_variant_blaslt) != 0)
        return false;
    return blaslt_check(plan, &ignored) == 0;
}

/* Returns the variant with copies of operands to try, or NULL. */
static const char *wants_repack(const struct cuda_kernels *k, const struct step *step, const struct plan *plan,
                                const uint64_t *addresses)
{
    if (plan->kind != PLAN_GEMM)
        return NULL;
    if (step_variant(step))
        return cuda_repack_variant(step_variant(step));
    if (!k->blaslt || blaslt_is_absent(k->blaslt))
        return NULL;
    if (!k->device->repack_bytes)
        return repack_should_activate(plan) ? repack_activated : NULL;
    return repack_estimate(plan, addresses);
}

static int prepare_own(const struct cuda_kernels *k, const struct step *step, const char *variant,
                       struct cuda_work *work, struct error *e)
{
    const struct cuda_ops_device device = cuda_embedded_device(&k->device->base.info);

    cuda_work_release(work);
    if (work->plan->kind == PLAN_KERNEL) {
        if (cuda_user_prepare(k->device, &work->plan->kernel, work->addresses, &work->launch, e) < 0)
            return -1;
        work->variant = cuda_variant_user;
        return 0;
    }
    if (transfer_is_forced(step))
        return refuse_transfer(e);
    if (cuda_ops_launch((enum op_id)step->op, work->plan, work->addresses, variant, &device, &work->launch, e) < 0)
        return -1;
    if (cuda_embedded_get(&k->embedded, work->launch.kernel, &work->function, e) < 0)
        return -1;
    work->variant = work->launch.variant;
    return cuda_embedded_encode(&work->launch, e);
}

int cuda_work_prepare_own(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work,
                          struct error *e)
{
    return prepare_own(k, step, step_variant(step), work, e);
}

static int prepare_blaslt(const struct cuda_kernels *k, const struct tuning_choice *choice, struct cuda_work *work,
                          struct error *e)
{
    if (blaslt_plan_get(k->blaslt, work->plan, work->addresses, choice, &work->blaslt, e) < 0)
        return -1;
    work->variant = cuda_variant_blaslt;
    work->workspace = blaslt_plan_workspace(work->blaslt);
    work->launches = blaslt_calls(work->plan);
    return 0;
}

int cuda_work_prepare_choice(const struct cuda_kernels *k, const struct step *step, const struct tuning_choice *choice,
                             struct cuda_work *work, struct error *e)
{
    const char *repack = cuda_repack_variant(choice->variant);

    cuda_work_release(work);
    if (repack)
        return cuda_repack_prepare(k, repack, work, e);
    if (strcmp(choice->variant, cuda_variant_blaslt) != 0)
        return prepare_own(k, step, choice->variant, work, e);
    if (!wants_blaslt(k, step, work->plan))
        return error_set(e, ERROR_UNSUPPORTED, "cuBLASLt does not serve this step");
    return prepare_blaslt(k, choice, work, e);
}

int cuda_work_prepare_plain(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work,
                            struct error *e)
{
    cuda_work_release(work);
    if (wants_blaslt(k, step, work->plan)) {
        if (prepare_blaslt(k, NULL, work, e) == 0)
            return 0;
        /* The embedded kernel works without the library's algorithm and the memory to start it. */
        if (step_variant(step) || cuda_device_is_broken(k->device))
            return -1;
    }
    return cuda_work_prepare_own(k, step, work, e);
}

int cuda_work_prepare_usual(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work,
                            struct error *e)
{
    const char *variant = wants_repack(k, step, work->plan, work->addresses);

    if (variant) {
        if (cuda_repack_prepare(k, variant, work, e) == 0)
            return 0;
        /* Copies that do not fit, or without an algorithm of the library, are no error. */
        if (step_variant(step) || cuda_device_is_broken(k->device))
            return -1;
    }
    return cuda_work_prepare_plain(k, step, work, e);
}

static bool find_choice(const struct cuda_kernels *k, const struct step *step, const struct plan *plan,
                        const uint64_t *addresses, bool may_block, struct tuning_choice *ret)
{
    return !step_variant(step) && cuda_tuned_find(k, plan, addresses, may_block, ret);
}

int cuda_work_prepare(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work, struct error *e)
{
    struct tuning_choice choice;

    /* A choice that does not fit the step is no error. */
    if (find_choice(k, step, work->plan, work->addresses, true, &choice) &&
        cuda_work_prepare_choice(k, step, &choice, work, e) == 0)
        return 0;
    return cuda_work_prepare_usual(k, step, work, e);
}

bool cuda_work_is_ready(const struct cuda_kernels *k, const struct step *step, const uint64_t *addresses)
{
    struct tuning_choice choice;
    const bool tuned = find_choice(k, step, &step->plan, addresses, false, &choice);
    const char *repack = tuned ? cuda_repack_variant(choice.variant) : wants_repack(k, step, &step->plan, addresses);

    if (repack)
        return cuda_repack_is_ready(k, &step->plan, addresses, repack);
    if (!wants_blaslt(k, step, &step->plan) || (tuned && strcmp(choice.variant, cuda_variant_blaslt) != 0))
        return true;
    return blaslt_plan_is_cached(k->blaslt, &step->plan, addresses, tuned ? &choice : NULL);
}

int cuda_work_issue(const struct cuda_queue *q, struct cuda_work *work, struct error *e)
{
    if (work->host)
        return issue_transfer(q, work, e);
    if (work->plan->kind == PLAN_KERNEL)
        return cuda_user_issue(q, &work->plan->kernel, work->early, &work->launch, e);
    if (work->repack)
        return cuda_repack_issue(q, work->repack, e);
    if (!work->blaslt)
        return cuda_embedded_launch(q, work->function, &work->launch, e);
    return blaslt_plan_run(q, work->blaslt, work->plan, work->addresses, e);
}

void cuda_work_release(struct cuda_work *work)
{
    work->blaslt = blaslt_plan_unref(work->blaslt);
    work->repack = cuda_repack_free(work->repack);
    work->workspace = 0;
    work->scratch = 0;
    work->launches = 1;
}

/* ---- checks before a step is queued ---- */

/* Memory that is not mapped yet is assumed to have an allocation's alignment. */
static int check_forced(const struct backend_device_info *info, const struct step *step, struct error *e)
{
    const struct cuda_ops_device device = cuda_embedded_device(info);
    uint64_t addresses[STEP_MAX_OPERANDS];
    struct cuda_launch launch;

    if (strcmp(step_variant(step), cuda_variant_blaslt) == 0)
        return blaslt_check(&step->plan, e);
    if (cuda_repack_variant(step_variant(step)))
        return repack_check(&step->plan, step_variant(step), e);
    /* Whether an operand is in host memory is known once its memory is open. */
    if (transfer_is_forced(step))
        return step->plan.elementwise.contiguous ? 0 : refuse_transfer(e);
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

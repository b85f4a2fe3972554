/* Owns the functions and cuBLASLt's plans of one gemm whose operands are copied. */
#include "repack.h"
#include "repack_sketch.h"

#include <stdlib.h>
#include <string.h>

#include "blaslt/blaslt.h"
#include "driver/device.h"
#include "kernels.h"
#include "work.h"

struct means {
    CUfunction function; /* a copy, or the activation of the product; unused where `blaslt` is set */
    struct cuda_launch launch;
    struct blaslt_plan *blaslt; /* a product: a reference; or NULL */
};

struct cuda_repack {
    struct repack_sketch sketch;
    struct means means[];
};

const char *cuda_repack_variant(const char *name)
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

int cuda_repack_prepare(const struct cuda_kernels *k, const char *variant, struct cuda_work *work, struct error *e)
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

bool cuda_repack_is_ready(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses,
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

int cuda_repack_issue(const struct cuda_queue *q, struct cuda_repack *r, struct error *e)
{
    for (unsigned i = 0; i < r->sketch.n; i++)
        if (issue(q, &r->sketch.actions[i], &r->means[i], e) < 0)
            return -1;
    return 0;
}

struct cuda_repack *cuda_repack_free(struct cuda_repack *r)
{
    if (!r)
        return NULL;
    for (unsigned i = 0; i < r->sketch.n; i++)
        r->means[i].blaslt = blaslt_plan_unref(r->means[i].blaslt);
    repack_sketch_free(&r->sketch);
    free(r);
    return NULL;
}

/* What may run a step: cuBLASLt's algorithms and our own kernels. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "blaslt/blaslt.h"
#include "compute/kernels.h"
#include "compute/repack_sketch.h"
#include "tune.h"

/* Places that are kept for our own kernels. */
enum { OWN_MAX = BACKEND_MAX_VARIANTS };

static int list_library(const struct cuda_kernels *k, const struct step *step, const uint64_t *addresses,
                        struct tuning_result *ret, struct error *e)
{
    unsigned n = 0;

    if (!k->blaslt || blaslt_check(&step->plan, e) < 0)
        return 0;
    if (blaslt_candidates(k->blaslt, &step->plan, addresses, ret->candidates, TUNING_CANDIDATES_MAX - OWN_MAX, &n, e) <
            0 &&
        !blaslt_is_absent(k->blaslt))
        return -1;
    ret->n = n;
    return 0;
}

/* Products of pieces are for those who have asked for less than the highest precision, and where they keep what is
 * documented of them. */
static bool is_allowed(const struct plan *plan, const char *variant)
{
    if (strcmp(variant, repack_bf16x3) == 0)
        return plan->gemm.in_pieces;
    return strcmp(variant, repack_bf16x6) != 0 || (plan->gemm.in_pieces && repack_is_as_exact(plan));
}

/* Each is tried when it is measured: whether it serves this step is for itself to say. */
static void list_own(const struct cuda_kernels *k, const struct step *step, struct tuning_result *ret)
{
    const char *const *names = cuda_variants_find(&k->variants, op_get((enum op_id)step->op), step->plan.dtype);

    for (; names && *names && ret->n < TUNING_CANDIDATES_MAX; names++) {
        struct tuning_candidate *c = &ret->candidates[ret->n];

        if (strcmp(*names, cuda_variant_blaslt) == 0 || !is_allowed(&step->plan, *names))
            continue;
        *c = (struct tuning_candidate){.n = 0};
        step_copy_variant(c->choice.variant, *names);
        snprintf(c->text, sizeof(c->text), "%s", *names);
        ret->n++;
    }
}

/* None was tried yet. */
static void begin_all(struct tuning_result *ret)
{
    for (unsigned i = 0; i < ret->n; i++) {
        ret->candidates[i].state = TUNING_LEFT_OUT;
        ret->candidates[i].us = NAN;
    }
}

/* Without tuning the library's first choice runs, or what the launcher chooses. */
static void find_usual(const struct cuda_kernels *k, const struct step *step, const uint64_t *addresses,
                       struct tuning_result *ret)
{
    struct cuda_work work = {.plan = &step->plan};
    struct error ignored;

    memcpy(work.addresses, addresses, sizeof(work.addresses));
    ret->usual = 0;
    if (cuda_work_prepare_usual(k, step, &work, &ignored) < 0)
        return;
    for (unsigned i = ret->n; i-- > 0;)
        if (strcmp(ret->candidates[i].choice.variant, work.variant) == 0)
            ret->usual = i; /* of the library's the first */
    cuda_work_release(&work);
}

int tune_list(const struct cuda_kernels *k, const struct step *step, const uint64_t *addresses,
              struct tuning_result *ret, struct error *e)
{
    ret->n = 0;
    if (list_library(k, step, addresses, ret, e) < 0)
        return -1;
    list_own(k, step, ret);
    if (ret->n < 2)
        return error_set(e, ERROR_UNSUPPORTED, "there is nothing to tune: one kernel serves this op and dtype here");
    begin_all(ret);
    find_usual(k, step, addresses, ret);
    return 0;
}

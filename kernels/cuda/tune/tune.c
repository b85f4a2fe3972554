/* Owns a tuning: lists the candidates for the step, and measures them on the device. */
#include "tune.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "blaslt/blaslt.h"
#include "compute/kernels.h"
#include "compute/repack_sketch.h"
#include "tournament.h"
#include "util/clock.h"
#include "util/log.h"

/* ---- candidates ---- */

/* Candidates reserved for our own kernels. */
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

/* Whether the variant has the request's precision: products of pieces need less than the highest. */
static bool is_allowed(const struct plan *plan, const char *variant)
{
    if (strcmp(variant, repack_bf16x3) == 0)
        return plan->gemm.in_pieces;
    return strcmp(variant, repack_bf16x6) != 0 || (plan->gemm.in_pieces && repack_is_as_exact(plan));
}

/* Lists our own kernels for the op and dtype. Measuring shows whether a kernel serves this step. */
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
            ret->usual = i; /* the first one, if it is the library's variant */
    cuda_work_release(&work);
}

static int list_candidates(const struct cuda_kernels *k, const struct step *step, const uint64_t *addresses,
                           struct tuning_result *ret, struct error *e)
{
    ret->n = 0;
    if (list_library(k, step, addresses, ret, e) < 0)
        return -1;
    list_own(k, step, ret);
    if (ret->n < 2)
        return error_set(e, ERROR_UNSUPPORTED, "there is nothing to tune: one kernel serves this op and dtype here");
    for (unsigned i = 0; i < ret->n; i++) {
        ret->candidates[i].state = TUNING_LEFT_OUT;
        ret->candidates[i].us = NAN;
    }
    find_usual(k, step, addresses, ret);
    return 0;
}

/* ---- the tuning ---- */

/* Larger products would block the GPU for other users too long. */
static const double OPERATIONS_MAX = 0x1p45;

bool cuda_tunes(const struct step *step)
{
    return step->plan.kind == PLAN_GEMM && !plan_is_empty(&step->plan) && !step_variant(step);
}

static void find_before(const struct cuda_kernels *k, struct tuning_result *ret)
{
    struct tuning_choice choice;

    ret->before = ret->usual;
    if (!tuning_table_find(k->tuning, &ret->key, &choice))
        return;
    for (unsigned i = 0; i < ret->n; i++)
        if (memcmp(&ret->candidates[i].choice, &choice, sizeof(choice)) == 0) {
            ret->before = i;
            return;
        }
    if (ret->n == TUNING_CANDIDATES_MAX)
        return;
    ret->before = ret->n++;
    ret->candidates[ret->before] = (struct tuning_candidate){.choice = choice, .us = NAN};
    snprintf(ret->candidates[ret->before].text, sizeof(ret->candidates[0].text), "%.24s, as chosen before",
             choice.variant);
}

/* ---- the tournament, on a bench ---- */

/* True for a broken device, and if the pace cancels the tuning; false if the candidate does not serve the step. */
static bool ends_all(void *context, const struct error *why)
{
    const struct tune_bench *b = context;

    return cuda_device_is_broken(b->queue.device) || why->code == ERROR_CANCELLED || why->code == ERROR_DEVICE_LOST;
}

static uint64_t now_ns(void *context)
{
    const struct tune_bench *b = context;

    return clock_now_ns() - (b->request->patient ? b->paused_ns : 0);
}

/* Returns 0 for patient tunings, whose time excludes pauses. */
static double pause_ns(void *context)
{
    const struct tune_bench *b = context;

    return b->request->patient || !b->pauses ? 0 : (double)b->paused_ns / b->pauses;
}

static double operations(const struct plan_gemm *g)
{
    return 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)g->batch_count;
}

/* Writes a text such as "linear bf16 4096x4096x4096 nt bias gelu". */
static void describe(const struct tuning_request *request, const uint64_t *addresses, char *into, size_t size)
{
    const int n = snprintf(into, size, "%.32s ", step_op_name(&request->step));

    if (n > 0 && (size_t)n < size)
        blaslt_problem_text(&request->step.plan, addresses, into + n, size - (size_t)n);
}

/* A client that waits sets `until_ns`; the budget applies otherwise, and where `until_ns` has passed. */
static uint64_t ends_at(const struct tuning_request *request, uint64_t begin_ns)
{
    const uint64_t budget_ns = begin_ns + (uint64_t)request->budget_ms * 1000 * 1000;

    return request->until_ns > begin_ns && request->until_ns < budget_ns ? request->until_ns : budget_ns;
}

int cuda_tune(const struct cuda_kernels *k, const struct tuning_request *request, struct tuning_pace *pace,
              struct tuning_result *ret, struct error *e)
{
    const uint64_t begin_ns = clock_now_ns(), until_ns = ends_at(request, begin_ns);
    const uint64_t *addresses;
    struct tune_bench bench;
    int r;

    memset(ret, 0, sizeof(*ret));
    if (!cuda_tunes(&request->step))
        return error_set(e, ERROR_UNSUPPORTED, "there is nothing to tune: one kernel serves this op");
    if (operations(&request->step.plan.gemm) > OPERATIONS_MAX)
        return error_set(e, ERROR_LIMIT_EXCEEDED, "the product is too large to tune: at most 2^45 operations");
    if (tune_bench_open(&bench, k, request, pace, e) < 0)
        return -1;
    addresses = bench.operands.addresses[0];
    cuda_tuned_machine(k, ret->machine, sizeof(ret->machine));
    describe(request, addresses, ret->problem, sizeof(ret->problem));
    r = cuda_tuned_key(k, &request->step.plan, addresses, &ret->key, e);
    if (r == 0)
        r = list_candidates(k, &request->step, addresses, ret, e);
    if (r == 0) {
        find_before(k, ret);
        ret->best = ret->before;
        r = pace && pace->listed ? pace->listed(pace, ret, e) : 0;
    }
    if (r == 0) {
        const struct tournament t = {tune_measure_first, tune_measure, ends_all,        now_ns, pause_ns, &bench,
                                     now_ns(&bench),     until_ns,     request->patient};

        log_debug("tuning_begins", "problem=\"%s\" candidates=%u tried=%u prepared_us=%llu", ret->problem, ret->n,
                  tuning_tried(ret), (unsigned long long)(clock_now_ns() - begin_ns) / 1000);
        r = tournament_run(&t, ret, e);
    }
    tune_bench_close(&bench);
    return r;
}

/* Owns the tournament: who is measured how often, and what wins. */
#include "tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blaslt/blaslt.h"
#include "compute/kernels.h"
#include "compute/tuned.h"
#include "util/clock.h"

enum {
    FINALISTS = 8,
    ROUNDS = 9,      /* of the finalists' measurements */
    ROUNDS_LONG = 3, /* where one execution takes LONG_US */
    LONG_US = 3000,
};

/* Whoever is slower than the fastest by more in the first round stays behind: a single measurement is not off by that.
 */
static const double BEHIND = 1.25;
/* The same of the very first execution, which also loads code. */
static const double HOPELESS = 3;
/* The first round of long products leaves out what the library thinks least of. */
static const uint64_t FIRST_ROUND_NS = 500 * 1000 * 1000;
/* The least gain for which the usual choice is left. */
static const double LEAST_GAIN = 0.01;

/* A single execution of more would keep other users from the GPU for long. */
static const double OPERATIONS_MAX = 0x1p45;

bool cuda_tunes(const struct step *step)
{
    return step->plan.kind == PLAN_GEMM && !plan_is_empty(&step->plan) && !step_variant(step);
}

static double best_of(const struct tuning_result *ret)
{
    double best = INFINITY;

    for (unsigned i = 0; i < ret->n; i++)
        if (ret->candidates[i].state == TUNING_MEASURED && ret->candidates[i].us < best)
            best = ret->candidates[i].us;
    return best;
}

/* Once, behind an execution that loads its code and tells whether it is worth it. */
static int measure_first(struct tune_bench *b, struct tuning_candidate *c, double best, struct error *e)
{
    if (tune_measure(b, &c->choice, 0, &c->us, e) < 0)
        return -1;
    c->n = 1;
    c->state = c->us > best * HOPELESS ? TUNING_SLOWER : TUNING_MEASURED;
    return c->state == TUNING_SLOWER ? 0 : tune_measure(b, &c->choice, c->us, &c->us, e);
}

/* Whether the first round has taken long enough. The library tells its better candidates first. */
static bool is_enough(const struct tuning_candidate *c, uint64_t begin_ns)
{
    return c->choice.has_algorithm && clock_now_ns() > begin_ns + FIRST_ROUND_NS;
}

/* A candidate that does not serve the step is none. A broken device, or the pace's word, ends it all. */
static int first_round(struct tune_bench *b, struct tuning_result *ret, struct error *e)
{
    const uint64_t begin_ns = clock_now_ns();

    for (unsigned i = 0; i < ret->n; i++) {
        struct tuning_candidate *c = &ret->candidates[i];
        const double best = best_of(ret);
        struct error why;

        c->us = NAN;
        c->state = TUNING_LEFT_OUT;
        if (i != ret->usual && i != ret->before && is_enough(c, begin_ns))
            continue;
        if (measure_first(b, c, best, &why) == 0)
            continue;
        if (cuda_device_is_broken(b->queue.device) || why.code == ERROR_CANCELLED || why.code == ERROR_DEVICE_LOST) {
            *e = why;
            return -1;
        }
        c->us = NAN;
        c->state = TUNING_FAILED;
    }
    return 0;
}

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The fastest of the first round, and the usual one, into `finalists`. */
static unsigned choose_finalists(struct tuning_result *ret, unsigned finalists[FINALISTS + 2])
{
    const double best = best_of(ret);
    double times[TUNING_CANDIDATES_MAX], last;
    unsigned n_times = 0, n = 0;

    for (unsigned i = 0; i < ret->n; i++)
        if (ret->candidates[i].state == TUNING_MEASURED)
            times[n_times++] = ret->candidates[i].us;
    qsort(times, n_times, sizeof(times[0]), by_number);
    last = n_times > FINALISTS ? times[FINALISTS - 1] : INFINITY;
    for (unsigned i = 0; i < ret->n; i++) {
        struct tuning_candidate *c = &ret->candidates[i];

        if (c->state != TUNING_MEASURED)
            continue;
        if (i == ret->usual || i == ret->before || (n < FINALISTS && c->us <= best * BEHIND && c->us <= last))
            finalists[n++] = i;
        else
            c->state = TUNING_SLOWER;
    }
    return n;
}

/* They take turns, so that a clock that changes meets all alike. */
static int final_rounds(struct tune_bench *b, struct tuning_result *ret, const unsigned *finalists, unsigned n,
                        double samples[FINALISTS + 2][ROUNDS], unsigned *ret_rounds, struct error *e)
{
    const unsigned rounds = best_of(ret) > LONG_US ? ROUNDS_LONG : ROUNDS;

    for (unsigned round = 0; round < rounds; round++)
        for (unsigned i = 0; i < n; i++) {
            struct tuning_candidate *c = &ret->candidates[finalists[(i + round) % n]];

            if (tune_measure(b, &c->choice, c->us, &samples[(i + round) % n][round], e) < 0)
                return -1;
        }
    *ret_rounds = rounds;
    return 0;
}

/* Whether it is to be taken in place of the best one so far. */
static bool is_better(const struct tuning_result *ret, const struct tuning_candidate *c)
{
    const struct tuning_candidate *before = &ret->candidates[ret->before];

    if (ret->best != ret->before)
        return c->us < ret->candidates[ret->best].us;
    return before->state != TUNING_MEASURED || (c->high_us < before->low_us && c->us < before->us * (1 - LEAST_GAIN));
}

static double spread_of(const struct tuning_candidate *c)
{
    return c->state == TUNING_MEASURED ? (c->high_us - c->low_us) / c->us : 0;
}

static void conclude(struct tuning_result *ret, const unsigned *finalists, unsigned n,
                     double samples[FINALISTS + 2][ROUNDS], unsigned rounds)
{
    double spreads[2];

    for (unsigned i = 0; i < n; i++) {
        struct tuning_candidate *c = &ret->candidates[finalists[i]];

        qsort(samples[i], rounds, sizeof(samples[i][0]), by_number);
        c->us = samples[i][rounds / 2];
        c->low_us = samples[i][rounds / 4];
        c->high_us = samples[i][rounds - 1 - rounds / 4];
        c->n = rounds;
    }
    ret->best = ret->before;
    for (unsigned i = 0; i < n; i++)
        if (finalists[i] != ret->before && is_better(ret, &ret->candidates[finalists[i]]))
            ret->best = finalists[i];
    spreads[0] = spread_of(&ret->candidates[ret->before]);
    spreads[1] = spread_of(&ret->candidates[ret->best]);
    ret->noise = spreads[spreads[0] < spreads[1]];
}

/* What runs now: an earlier tuning's choice, or the usual one. It stays unless another is faster by more than the
 * noise. */
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
    ret->candidates[ret->before] = (struct tuning_candidate){.choice = choice};
    snprintf(ret->candidates[ret->before].text, sizeof(ret->candidates[0].text), "%.24s, as chosen before",
             choice.variant);
}

static int compete(struct tune_bench *b, struct tuning_result *ret, struct error *e)
{
    double samples[FINALISTS + 2][ROUNDS];
    unsigned finalists[FINALISTS + 2], n, rounds;

    if (first_round(b, ret, e) < 0)
        return -1;
    n = choose_finalists(ret, finalists);
    if (n == 0)
        return error_set(e, ERROR_UNSUPPORTED, "no kernel here serves the op with these shapes and layouts");
    if (final_rounds(b, ret, finalists, n, samples, &rounds, e) < 0)
        return -1;
    conclude(ret, finalists, n, samples, rounds);
    return 0;
}

static double operations(const struct plan_gemm *g)
{
    return 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)g->batch_count;
}

int cuda_tune(const struct cuda_kernels *k, const struct tuning_request *request, struct tuning_pace *pace,
              struct tuning_result *ret, struct error *e)
{
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
    blaslt_problem_text(&request->step.plan, addresses, ret->problem, sizeof(ret->problem));
    r = cuda_tuned_key(k, &request->step.plan, addresses, &ret->key, e);
    if (r == 0)
        r = tune_list(k, &request->step, addresses, ret, e);
    if (r == 0) {
        find_before(k, ret);
        r = compete(&bench, ret, e);
    }
    tune_bench_close(&bench);
    return r;
}

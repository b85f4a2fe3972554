/* The rounds of a tournament, and its end. */
#include "tournament.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MEMBERS_MAX = TOURNAMENT_FINALISTS + 2, /* with the usual one and what runs now */
    ROUNDS_MIN = 3,                         /* fewer tell nothing of the noise */
    LONG_US = 3000,                         /* of one execution: then few are measured */
    LIBRARY_FIRST = 4,                      /* of the library's candidates that come before our own kernels */
    PAUSE_US = 1500,                        /* before a measurement: a device must be still */
    OWN_SLOWER = 6,                         /* than the library's fastest: what our own kernels may be at worst */
};

/* Whoever is slower than the fastest by more in the first round stays behind: a single measurement is not off by that.
 * That of a long execution is its very first, which also loads code. */
static const double BEHIND = 1.25, BEHIND_LONG = 1.5;
/* The same of the very first execution of a short one. */
static const double HOPELESS = 3;
/* The part of the time that the first round may take. */
static const double FIRST_ROUND = 0.55;
/* The least gain for which the choice that runs now is left; and by a single measurement, of a long execution and of
 * one that is not, for which there is no time only where other work of the device takes it. */
static const double LEAST_GAIN = 0.01, LEAST_GAIN_ONCE = 0.05, LEAST_GAIN_DISTURBED = 0.25;

struct finals {
    unsigned members[MEMBERS_MAX], n, rounds;
    double samples[MEMBERS_MAX][TOURNAMENT_ROUNDS];
};

/* ---- time ---- */

/* What a measurement takes, in ns, where an execution takes `us`. */
static double cost_ns(double us)
{
    return 1e3 * ((us > TOURNAMENT_SLICE_US ? us : TOURNAMENT_SLICE_US) + PAUSE_US);
}

static double left_ns(const struct tournament *t, uint64_t until_ns)
{
    const uint64_t now = t->now_ns(t->context);

    return now < until_ns ? (double)(until_ns - now) : 0;
}

static uint64_t first_round_ends(const struct tournament *t)
{
    return t->until_ns <= t->begin_ns ? t->until_ns
                                      : t->begin_ns + (uint64_t)((double)(t->until_ns - t->begin_ns) * FIRST_ROUND);
}

/* ---- the first round ---- */

static double best_of(const struct tuning_result *r)
{
    double best = INFINITY;

    for (unsigned i = 0; i < r->n; i++)
        if (r->candidates[i].state == TUNING_MEASURED && r->candidates[i].us < best)
            best = r->candidates[i].us;
    return best;
}

static unsigned add(unsigned *order, unsigned n, unsigned candidate)
{
    for (unsigned i = 0; i < n; i++)
        if (order[i] == candidate)
            return n;
    order[n] = candidate;
    return n + 1;
}

static void order_of(const struct tuning_result *r, unsigned order[TUNING_CANDIDATES_MAX])
{
    unsigned n = 0, library = 0;

    n = add(order, n, r->usual);
    n = add(order, n, r->before);
    for (unsigned i = 0; i < r->n && library < LIBRARY_FIRST; i++)
        if (r->candidates[i].choice.has_algorithm) {
            n = add(order, n, i);
            library++;
        }
    for (unsigned i = 0; i < r->n; i++)
        if (!r->candidates[i].choice.has_algorithm)
            n = add(order, n, i);
    for (unsigned i = 0; i < r->n; i++)
        n = add(order, n, i);
}

/* Twice: the first execution loads code, and tells whether the second is worth it. A long one is measured by that
 * alone, but for the usual one, of which all others are told by. */
static int measure_first(const struct tournament *t, struct tuning_candidate *c, double best, struct error *e)
{
    if (t->measure(t->context, &c->choice, 0, &c->us, e) < 0)
        return -1;
    c->n = 1;
    c->state = c->us > best * (c->us > LONG_US ? BEHIND_LONG : HOPELESS) ? TUNING_SLOWER : TUNING_MEASURED;
    if (c->state == TUNING_SLOWER || (c->us > LONG_US && best < INFINITY) || left_ns(t, t->until_ns) < cost_ns(c->us))
        return 0;
    return t->measure(t->context, &c->choice, c->us, &c->us, e);
}

static int first_round(const struct tournament *t, struct tuning_result *r, struct error *e)
{
    const uint64_t ends = first_round_ends(t);
    unsigned order[TUNING_CANDIDATES_MAX];

    order_of(r, order);
    for (unsigned i = 0; i < r->n; i++) {
        struct tuning_candidate *c = &r->candidates[i];

        c->us = NAN;
        c->state = TUNING_LEFT_OUT;
    }
    for (unsigned i = 0; i < r->n; i++) {
        struct tuning_candidate *c = &r->candidates[order[i]];
        const double best = best_of(r);
        struct error why;

        /* Without a time to compare with there is no way to know what fits. */
        if (best < INFINITY && left_ns(t, ends) < cost_ns(c->choice.has_algorithm ? best : best * OWN_SLOWER))
            continue;
        if (measure_first(t, c, best, &why) == 0)
            continue;
        if (t->ends_all(t->context, &why)) {
            *e = why;
            return -1;
        }
        c->us = NAN;
        c->state = TUNING_FAILED;
    }
    return 0;
}

/* ---- the finals ---- */

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static bool is_member(const struct finals *f, unsigned candidate)
{
    for (unsigned i = 0; i < f->n; i++)
        if (f->members[i] == candidate)
            return true;
    return false;
}

/* The fastest that is no member yet, and not far behind; -1: none. */
static int next_fastest(const struct tuning_result *r, const struct finals *f, double most_us)
{
    int found = -1;

    for (unsigned i = 0; i < r->n; i++) {
        const struct tuning_candidate *c = &r->candidates[i];

        if (c->state == TUNING_MEASURED && c->us <= most_us && !is_member(f, i) &&
            (found < 0 || c->us < r->candidates[found].us))
            found = (int)i;
    }
    return found;
}

/* What runs now, the fastest, the usual one, and as many of the next fastest as the time is for. Of all that are not
 * members the measurement of the first round stands. */
static void choose_finalists(const struct tournament *t, struct tuning_result *r, struct finals *f)
{
    const double best = best_of(r), most = best * (best > LONG_US ? BEHIND_LONG : BEHIND);
    double round_ns = 0, left = left_ns(t, t->until_ns);
    int next;

    f->n = 0;
    if (r->candidates[r->before].state == TUNING_MEASURED) {
        f->members[f->n++] = r->before;
        round_ns += cost_ns(r->candidates[r->before].us);
    }
    while (f->n < MEMBERS_MAX - 1 && (next = next_fastest(r, f, most)) >= 0) {
        const double with = round_ns + cost_ns(r->candidates[next].us);

        if (f->n >= 2 && with * ROUNDS_MIN > left)
            break;
        f->members[f->n++] = (unsigned)next;
        round_ns = with;
    }
    if (r->candidates[r->usual].state == TUNING_MEASURED && !is_member(f, r->usual) &&
        (round_ns + cost_ns(r->candidates[r->usual].us)) * ROUNDS_MIN <= left) {
        f->members[f->n++] = r->usual;
        round_ns += cost_ns(r->candidates[r->usual].us);
    }
    f->rounds = round_ns * ROUNDS_MIN > left ? 0 : (unsigned)fmin(left / round_ns, TOURNAMENT_ROUNDS);
    if (best > LONG_US && f->rounds > ROUNDS_MIN)
        f->rounds = ROUNDS_MIN;
    for (unsigned i = 0; i < r->n; i++)
        if (r->candidates[i].state == TUNING_MEASURED && !is_member(f, i) && i != r->usual)
            r->candidates[i].state = TUNING_SLOWER;
}

/* They take turns, so that a clock that changes meets all alike. Whole rounds count, and no more of them than there is
 * time for: other work of the device may have made measurements longer. */
static int final_rounds(const struct tournament *t, const struct tuning_result *r, struct finals *f, struct error *e)
{
    for (unsigned round = 0; round < f->rounds; round++) {
        for (unsigned i = 0; i < f->n; i++) {
            const unsigned at = (i + round) % f->n;
            const struct tuning_candidate *c = &r->candidates[f->members[at]];

            if (left_ns(t, t->until_ns) <= 0) {
                f->rounds = round;
                return 0;
            }
            if (t->measure(t->context, &c->choice, c->us, &f->samples[at][round], e) < 0)
                return -1;
        }
    }
    return 0;
}

static void take_medians(struct tuning_result *r, struct finals *f)
{
    for (unsigned i = 0; i < f->n; i++) {
        struct tuning_candidate *c = &r->candidates[f->members[i]];

        qsort(f->samples[i], f->rounds, sizeof(f->samples[i][0]), by_number);
        c->us = f->samples[i][f->rounds / 2];
        c->low_us = f->samples[i][f->rounds / 4];
        c->high_us = f->samples[i][f->rounds - 1 - f->rounds / 4];
        c->n = f->rounds;
    }
}

/* ---- what wins ---- */

/* Whether it is to be taken in place of the best one so far. */
static bool is_better(const struct tuning_result *r, const struct tuning_candidate *c, double least_gain)
{
    const struct tuning_candidate *before = &r->candidates[r->before];

    if (r->best != r->before)
        return c->us < r->candidates[r->best].us;
    return before->state != TUNING_MEASURED || (c->high_us < before->low_us && c->us < before->us * (1 - least_gain));
}

static double spread_of(const struct tuning_candidate *c)
{
    return c->state == TUNING_MEASURED ? (c->high_us - c->low_us) / c->us : 0;
}

static void conclude(struct tuning_result *r, struct finals *f)
{
    const bool is_final = f->rounds >= ROUNDS_MIN;
    const double least_gain = is_final ? LEAST_GAIN : best_of(r) > LONG_US ? LEAST_GAIN_ONCE : LEAST_GAIN_DISTURBED;
    double spreads[2];

    for (unsigned i = 0; i < r->n; i++)
        r->candidates[i].low_us = r->candidates[i].high_us = r->candidates[i].us;
    if (is_final)
        take_medians(r, f);
    r->best = r->before;
    for (unsigned i = 0; i < f->n; i++)
        if (f->members[i] != r->before && is_better(r, &r->candidates[f->members[i]], least_gain))
            r->best = f->members[i];
    spreads[0] = spread_of(&r->candidates[r->before]);
    spreads[1] = spread_of(&r->candidates[r->best]);
    r->noise = spreads[spreads[0] < spreads[1]];
}

int tournament_run(const struct tournament *t, struct tuning_result *r, struct error *e)
{
    struct finals f = {.n = 0};

    if (first_round(t, r, e) < 0)
        return -1;
    choose_finalists(t, r, &f);
    if (f.n == 0)
        return error_set(e, ERROR_UNSUPPORTED, "no kernel here serves the op with these shapes and layouts");
    if (final_rounds(t, r, &f, e) < 0)
        return -1;
    conclude(r, &f);
    return 0;
}

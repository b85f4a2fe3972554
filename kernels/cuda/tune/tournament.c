/* The first round of a tournament, the finals, and the choice of the winner. */
#include "tournament.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MEMBERS_MAX = TOURNAMENT_FINALISTS + 2, /* with the usual candidate and the present choice */
    ROUNDS_MIN = 3,                         /* fewer rounds do not show the noise */
    LIBRARY_FIRST = 4,                      /* candidates of the library that come before our own kernels */
    PAUSE_US = 1500,                        /* least estimate of the pause before a measurement */
    OWN_SLOWER = 6,                         /* estimate of how many times slower our own kernels are at worst */
};

/* A candidate is out if its first measurement is slower than the fastest by this factor; rough ones are less exact. */
static const double BEHIND = 1.25, BEHIND_ROUGH = 1.5;
/* BEHIND for finalists, after 1, 2, … rounds. */
static const double BEHIND_IN_FINALS[TOURNAMENT_ROUNDS] = {INFINITY, 1.1, 1.05, 1.03, 1.02, 1.02, 1.02, 1.02, 1.02};
/* The part of the time that the first round may take. */
static const double FIRST_ROUND = 0.55;
/* The least gain that replaces the present choice, as a factor and as a time: the time between kernels in a row varies
 * as much. */
static const double LEAST_GAIN = 0.01, LEAST_GAIN_US = 0.1;
/* The least gain that a single measurement must show, for long executions, and where other work of the device left no
 * time for more. */
static const double LEAST_GAIN_ONCE = 0.05, LEAST_GAIN_DISTURBED = 0.25;

struct member {
    unsigned candidate, n;
    double samples[TOURNAMENT_ROUNDS];
    bool out; /* clearly slower than another member */
};

struct finals {
    struct member members[MEMBERS_MAX];
    unsigned n, rounds;
};

/* ---- time ---- */

/* Estimates the time of a measurement, where an execution takes `us`. */
static double cost_ns(const struct tournament *t, double us)
{
    const double pause_ns = t->pause_ns(t->context);

    return 1e3 * (us > TOURNAMENT_SLICE_US ? us : TOURNAMENT_SLICE_US) +
           (pause_ns > 1e3 * PAUSE_US ? pause_ns : 1e3 * PAUSE_US);
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

static void leave_out(struct tuning_candidate *c, bool tried, double us)
{
    c->state = TUNING_LEFT_OUT;
    c->tried = tried;
    c->us = us;
    c->n = 0;
}

/* Measures a candidate again whose first execution was long. The first time suffices if the candidate is far behind, or
 * if it is the first candidate and time is short. Others without time are left out, for a later tuning. */
static int measure_long(const struct tournament *t, struct tuning_candidate *c, double best, uint64_t until_ns,
                        struct error *e)
{
    const bool is_reference = best == INFINITY;
    const double wanted = cost_ns(t, c->us) * (is_reference ? ROUNDS_MIN : 1);

    c->state = c->us > best * BEHIND_ROUGH ? TUNING_SLOWER : TUNING_MEASURED;
    if (c->state == TUNING_SLOWER || (is_reference && left_ns(t, until_ns) < wanted))
        return 0;
    if (left_ns(t, until_ns) < wanted) {
        leave_out(c, false, NAN);
        return 0;
    }
    c->n = 1;
    return t->measure(t->context, &c->choice, c->us, TOURNAMENT_SLICE_US, &c->us, e);
}

static int measure_first(const struct tournament *t, struct tuning_candidate *c, double best, uint64_t until_ns,
                         struct error *e)
{
    bool rough = false;

    if (t->first(t->context, &c->choice, TOURNAMENT_BRIEF_US, &c->us, &rough, e) < 0)
        return -1;
    c->tried = true;
    c->n = !rough;
    c->state = c->us > best * BEHIND ? TUNING_SLOWER : TUNING_MEASURED;
    return rough ? measure_long(t, c, best, until_ns, e) : 0;
}

static int measure_or_fail(const struct tournament *t, struct tuning_candidate *c, double best, uint64_t until_ns,
                           struct error *e)
{
    struct error why;

    if (measure_first(t, c, best, until_ns, &why) == 0)
        return 0;
    if (t->ends_all(t->context, &why)) {
        *e = why;
        return -1;
    }
    c->us = NAN;
    c->n = 0;
    c->state = TUNING_FAILED;
    c->tried = true;
    return 0;
}

/* Whether there is time for the candidate's first measurement. True before the first time is known. */
static bool fits(const struct tournament *t, const struct tuning_candidate *c, double best, uint64_t until_ns)
{
    return best == INFINITY || left_ns(t, until_ns) >= cost_ns(t, c->choice.has_algorithm ? best : best * OWN_SLOWER);
}

/* Skips candidates that an earlier tuning has tried, except `usual` and `before`. If there was no time for any untried
 * candidate, one may use the time of the finals, or, if the tuning is patient, any time: so repeated tunings try all
 * candidates at last. */
static int first_round(const struct tournament *t, struct tuning_result *r, struct error *e)
{
    const uint64_t ends = first_round_ends(t);
    unsigned order[TUNING_CANDIDATES_MAX];
    bool had_more = false;

    order_of(r, order);
    for (unsigned i = 0; i < r->n; i++)
        if (!r->candidates[i].tried)
            leave_out(&r->candidates[i], false, NAN);
        else if (r->candidates[i].state == TUNING_MEASURED)
            r->candidates[i].state = TUNING_SLOWER; /* times of different tunings cannot be compared */
    for (unsigned i = 0; i < r->n; i++) {
        struct tuning_candidate *c = &r->candidates[order[i]];
        const bool was_tried = c->tried;
        const double best = best_of(r), earlier_us = c->us;

        if (was_tried && order[i] != r->usual && order[i] != r->before)
            continue;
        if (was_tried)
            leave_out(c, true, earlier_us);
        if (!fits(t, c, best, ends)) {
            if (was_tried || r->n_new > 0 || had_more || !(t->patient || fits(t, c, best, t->until_ns)))
                continue;
            had_more = true;
        }
        if (measure_or_fail(t, c, best, had_more && t->patient ? UINT64_MAX : t->until_ns, e) < 0)
            return -1;
        if (was_tried && !c->tried)
            leave_out(c, true, earlier_us);
        r->n_new += c->tried && !was_tried;
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
        if (f->members[i].candidate == candidate)
            return true;
    return false;
}

/* Finds the fastest candidate of at most `most_us` that is no member yet; -1: none. */
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

static void add_member(struct finals *f, unsigned candidate)
{
    f->members[f->n++] = (struct member){.candidate = candidate};
}

/* Chooses the present choice, the fastest, the usual candidate, and as many of the next fastest as there is time for.
 * Others keep their measurement of the first round. */
static void choose_finalists(const struct tournament *t, struct tuning_result *r, struct finals *f)
{
    const double best = best_of(r), most = best * BEHIND;
    double round_ns = 0, left = left_ns(t, t->until_ns);
    int next;

    f->n = 0;
    if (r->candidates[r->before].state == TUNING_MEASURED) {
        add_member(f, r->before);
        round_ns += cost_ns(t, r->candidates[r->before].us);
    }
    while (f->n < MEMBERS_MAX - 1 && (next = next_fastest(r, f, most)) >= 0) {
        const double with = round_ns + cost_ns(t, r->candidates[next].us);

        if (f->n >= 2 && with * ROUNDS_MIN > left)
            break;
        add_member(f, (unsigned)next);
        round_ns = with;
    }
    if (r->candidates[r->usual].state == TUNING_MEASURED && !is_member(f, r->usual) &&
        (round_ns + cost_ns(t, r->candidates[r->usual].us)) * ROUNDS_MIN <= left) {
        add_member(f, r->usual);
        round_ns += cost_ns(t, r->candidates[r->usual].us);
    }
    f->rounds = round_ns * ROUNDS_MIN > left ? 0 : best > TOURNAMENT_LONG_US ? ROUNDS_MIN : TOURNAMENT_ROUNDS;
    for (unsigned i = 0; i < r->n; i++)
        if (r->candidates[i].state == TUNING_MEASURED && !is_member(f, i) && i != r->usual)
            r->candidates[i].state = TUNING_SLOWER;
}

static double least_of(const struct member *m)
{
    double least = INFINITY;

    for (unsigned i = 0; i < m->n; i++)
        least = fmin(least, m->samples[i]);
    return least;
}

static double median_of(const struct member *m)
{
    double sorted[TOURNAMENT_ROUNDS];

    memcpy(sorted, m->samples, m->n * sizeof(sorted[0]));
    qsort(sorted, m->n, sizeof(sorted[0]), by_number);
    return sorted[m->n / 2];
}

/* Drops members whose best round is clearly slower than the fastest. The present choice stays for three rounds, since
 * the fastest is compared with it. Returns the number of members left. */
static unsigned leave_behind(const struct tuning_result *r, struct finals *f, unsigned rounds)
{
    double fastest = INFINITY;
    unsigned left = 0;

    for (unsigned i = 0; i < f->n; i++)
        fastest = fmin(fastest, median_of(&f->members[i]));
    for (unsigned i = 0; i < f->n; i++) {
        struct member *m = &f->members[i];

        if (least_of(m) > fastest * BEHIND_IN_FINALS[rounds - 1] && (rounds >= ROUNDS_MIN || m->candidate != r->before))
            m->out = true;
        left += !m->out;
    }
    return left;
}

/* Measures members in turn, so that a changing clock affects all alike. Only whole rounds count. Other work of the
 * device may delay measurements, so the time is checked before each. */
static int final_rounds(const struct tournament *t, const struct tuning_result *r, struct finals *f, struct error *e)
{
    for (unsigned round = 0; round < f->rounds; round++) {
        for (unsigned i = 0; i < f->n; i++) {
            struct member *m = &f->members[(i + round) % f->n];
            const struct tuning_candidate *c = &r->candidates[m->candidate];

            if (left_ns(t, t->until_ns) <= 0) {
                f->rounds = round;
                return 0;
            }
            if (!m->out && t->measure(t->context, &c->choice, c->us, TOURNAMENT_SLICE_US, &m->samples[round], e) < 0)
                return -1;
        }
        for (unsigned i = 0; i < f->n; i++)
            f->members[i].n += !f->members[i].out;
        if (leave_behind(r, f, round + 1) < 2 && round + 1 >= ROUNDS_MIN)
            f->rounds = round + 1;
    }
    return 0;
}

static void take_medians(struct tuning_result *r, struct finals *f)
{
    for (unsigned i = 0; i < f->n; i++) {
        struct member *m = &f->members[i];
        struct tuning_candidate *c = &r->candidates[m->candidate];

        qsort(m->samples, m->n, sizeof(m->samples[0]), by_number);
        c->us = m->samples[m->n / 2];
        c->low_us = m->samples[m->n / 4];
        c->high_us = m->samples[m->n - 1 - m->n / 4];
        c->n = m->n;
    }
}

/* ---- the winner ---- */

static bool is_better(const struct tuning_result *r, const struct tuning_candidate *c, double least_gain)
{
    const struct tuning_candidate *before = &r->candidates[r->before];

    if (c->n == 0)
        return false; /* `c` has only the time of its first execution */
    if (before->state == TUNING_LEFT_OUT)
        return false; /* no time was left to measure the present choice */
    if (r->best != r->before && c->us >= r->candidates[r->best].us)
        return false;
    return before->state != TUNING_MEASURED ||
           (c->high_us < before->low_us && c->us < fmin(before->us * (1 - least_gain), before->us - LEAST_GAIN_US));
}

static double spread_of(const struct tuning_candidate *c)
{
    return c->state == TUNING_MEASURED ? (c->high_us - c->low_us) / c->us : 0;
}

static void conclude(struct tuning_result *r, struct finals *f)
{
    const bool is_final = f->rounds >= ROUNDS_MIN;
    const double once = best_of(r) > TOURNAMENT_LONG_US ? LEAST_GAIN_ONCE : LEAST_GAIN_DISTURBED;
    double spreads[2];

    for (unsigned i = 0; i < r->n; i++)
        r->candidates[i].low_us = r->candidates[i].high_us = r->candidates[i].us;
    if (is_final)
        take_medians(r, f);
    r->best = r->before;
    for (unsigned i = 0; i < f->n; i++) {
        const unsigned candidate = f->members[i].candidate;

        if (candidate != r->before && is_better(r, &r->candidates[candidate], is_final ? LEAST_GAIN : once))
            r->best = candidate;
    }
    spreads[0] = spread_of(&r->candidates[r->before]);
    spreads[1] = spread_of(&r->candidates[r->best]);
    r->noise = spreads[spreads[0] < spreads[1]];
}

int tournament_run(const struct tournament *t, struct tuning_result *r, struct error *e)
{
    struct finals f = {.n = 0};

    r->n_new = 0;
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

#include "choice.h"

#include <math.h>
#include <stdlib.h>

enum {
    WAYS = 8,          /* places that a key can have in the table */
    TURNS = 4,         /* of each candidate, the first one to warm up */
    MOST_TURNS = 16,   /* where turns are not reported: jobs that failed, or that others' turns overlapped */
    SLOW_TURNS = 3,    /* of candidates that are slow */
    PROBE_FIRST = 16,  /* the use at which a rival has a turn for the first time; then at twice as many, and so on */
    PROBE_EVERY = 256, /* uses from one rival's turn to the next, later */
};

static const double SLOW_NS = 20e6; /* such turns are fewer */
static const double HOPELESS = 1.5; /* times the best: no more turns while candidates are tried */
static const double SHARE = 32;     /* a turn of a slower rival may add one part in so many to the time of all uses */
static const double TIE = 1.03;     /* within it the first in order wins */
static const double GAIN = 1.05;    /* that a rival must have to replace the chosen one */

bool choices_init(struct choices *choices)
{
    *choices = (struct choices){.classes = calloc(CHOICE_CLASSES, sizeof(struct choice_class))};
    pthread_mutex_init(&choices->lock, NULL);
    return choices->classes != NULL;
}

void choices_deinit(struct choices *choices)
{
    free(choices->classes);
    pthread_mutex_destroy(&choices->lock);
}

static struct choice_class *places(struct choices *choices, uint64_t key)
{
    return choices->classes + (key * UINT64_C(0x9e3779b97f4a7c15) >> 32) % (CHOICE_CLASSES / WAYS) * WAYS;
}

static struct choice_class *find(struct choices *choices, uint64_t key)
{
    struct choice_class *at = places(choices, key);

    for (unsigned i = 0; i < WAYS; i++)
        if (at[i].key == key)
            return &at[i];
    return NULL;
}

static void begin(struct choice_class *c, uint64_t key, unsigned candidates)
{
    *c = (struct choice_class){.key = key, .candidates = (uint8_t)candidates, .chosen = -1};
    for (unsigned i = 0; i < CHOICE_CANDIDATES; i++)
        c->of[i].best = INFINITY;
}

/* Where the key is, or comes to be. */
static struct choice_class *find_or_begin(struct choices *choices, uint64_t key, unsigned candidates)
{
    struct choice_class *found = find(choices, key), *at = places(choices, key);

    if (found && found->candidates == candidates)
        return found;
    for (unsigned i = 0; i < WAYS && !found; i++)
        if (!at[i].key)
            found = &at[i];
    if (!found) {
        found = at;
        for (unsigned i = 1; i < WAYS; i++)
            if (at[i].used_at < found->used_at)
                found = &at[i];
    }
    begin(found, key, candidates);
    return found;
}

static double least_cost(const struct choice_class *c)
{
    double least = INFINITY;

    for (unsigned i = 0; i < CHOICE_CANDIDATES; i++)
        least = fmin(least, c->of[i].best);
    return least;
}

static bool is_slower(const struct choice_class *c, unsigned candidate, double times)
{
    return c->of[candidate].best > times * least_cost(c) && c->of[candidate].best != INFINITY;
}

/* The candidate whose turn it is; -1: each has had its turns. */
static int next_turn(const struct choice_class *c, const uint8_t *order)
{
    int next = -1;

    for (unsigned i = 0; i < CHOICE_CANDIDATES; i++) {
        const unsigned candidate = order[i];
        const struct choice_candidate *of = &c->of[candidate];

        if (!(c->candidates & 1U << candidate) || of->reported >= TURNS || of->taken >= MOST_TURNS ||
            is_slower(c, candidate, HOPELESS))
            continue;
        if (next < 0 || of->taken < c->of[next].taken)
            next = (int)candidate;
    }
    return next;
}

static int choose(const struct choice_class *c, const uint8_t *order)
{
    const double least = least_cost(c);
    int first = -1;

    for (unsigned i = 0; i < CHOICE_CANDIDATES; i++) {
        if (!(c->candidates & 1U << order[i]))
            continue;
        if (c->of[order[i]].best <= TIE * least)
            return order[i];
        if (first < 0)
            first = order[i];
    }
    return first;
}

/* Of the rivals that look at most so many times slower, the one that has had the fewest turns. -1: there is none. */
static int next_rival(const struct choice_class *c, double times)
{
    int next = -1;

    for (int i = 0; i < CHOICE_CANDIDATES; i++)
        if (i != c->chosen && c->candidates & 1U << i && !is_slower(c, (unsigned)i, times) &&
            (next < 0 || c->of[i].taken < c->of[next].taken))
            next = i;
    return next;
}

/* A rival whose best time is at most so many times the least may have a turn at this use; 0: none has one.
 *
 * Turns are more frequent at first, since the machine may have been busy with other work during the trial. Powers of
 * two also give turns to rivals that looked hopeless: their trial may have been while threads slept, and the chosen one
 * has been measured awake since. */
static double probe_limit(uint32_t uses)
{
    if (uses >= PROBE_FIRST && (uses & (uses - 1)) == 0)
        return fmax(HOPELESS, 1 + uses / SHARE);
    return uses % PROBE_EVERY == 0 ? HOPELESS : 0;
}

static struct choice_turn turn_of(struct choice_class *c, const uint8_t *order)
{
    double limit;
    int next;

    c->uses++;
    if (c->chosen < 0 && (next = next_turn(c, order)) >= 0) {
        c->of[next].taken++;
        return (struct choice_turn){(unsigned)next, true};
    }
    if (c->chosen < 0)
        c->chosen = (int8_t)choose(c, order);
    /* The chosen one is measured as often as its rivals are: minima of unequal numbers would not compare. */
    if (c->probing) {
        c->probing = false;
        return (struct choice_turn){(unsigned)c->chosen, true};
    }
    limit = probe_limit(c->uses);
    if (limit > 0 && (next = next_rival(c, limit)) >= 0) {
        c->of[next].taken++;
        c->probing = true;
        return (struct choice_turn){(unsigned)next, true};
    }
    return (struct choice_turn){(unsigned)c->chosen, false};
}

struct choice_turn choices_next(struct choices *choices, uint64_t key, unsigned candidates, const uint8_t *order)
{
    struct choice_turn turn = {order[0], false};
    struct choice_class *c;

    for (unsigned i = 0; i < CHOICE_CANDIDATES && !(candidates & 1U << turn.candidate); i++)
        turn.candidate = order[i];
    if (!choices->classes || !(candidates & (candidates - 1)))
        return turn;
    pthread_mutex_lock(&choices->lock);
    c = find_or_begin(choices, key, candidates);
    c->used_at = ++choices->now;
    turn = turn_of(c, order);
    pthread_mutex_unlock(&choices->lock);
    return turn;
}

void choices_report(struct choices *choices, uint64_t key, unsigned candidate, double ns, double work)
{
    struct choice_candidate *of;
    struct choice_class *c;

    pthread_mutex_lock(&choices->lock);
    c = find(choices, key);
    if (c && c->candidates & 1U << candidate) {
        of = &c->of[candidate];
        if (of->reported++ > 0)
            of->best = fmin(of->best, ns / work);
        if (ns > SLOW_NS && of->reported >= SLOW_TURNS && of->reported < TURNS)
            of->reported = TURNS;
        if (c->chosen >= 0 && of->best * GAIN < c->of[c->chosen].best)
            c->chosen = (int8_t)candidate;
    }
    pthread_mutex_unlock(&choices->lock);
}

bool choices_get(struct choices *choices, unsigned index, struct choice_class *ret)
{
    bool found = false;

    pthread_mutex_lock(&choices->lock);
    for (unsigned i = 0; choices->classes && i < CHOICE_CLASSES && !found; i++)
        if (choices->classes[i].key && index-- == 0) {
            *ret = choices->classes[i];
            found = true;
        }
    pthread_mutex_unlock(&choices->lock);
    return found;
}

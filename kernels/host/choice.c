#include "choice.h"

#include <math.h>
#include <stdlib.h>

enum {
    PLACES = 8, /* table entries in which a key can be */
    TURNS = 4   /* first turns of each way; the first of them is a warmup and does not count */
};

static const double HOPELESS = 1.5; /* a way that is slower than the best by this factor gets no more first turns */
static const double SHARE = 32;     /* later turns of a way take 1/SHARE of the time of all uses */
static const double GAIN = 1.05;    /* factor by which a way must be faster to replace the chosen one */

struct choice_class {
    uint64_t key; /* 0: free */
    uint64_t used_at;
    uint64_t uses;
    unsigned chosen;
    struct {
        uint32_t turns, reports;
        double best; /* least time in ns for a unit of work; infinite: none yet */
    } ways[2];
};

void choices_init(struct choices *choices)
{
    *choices = (struct choices){.classes = calloc(CHOICE_CLASSES, sizeof(struct choice_class))};
    pthread_mutex_init(&choices->lock, NULL);
}

void choices_deinit(struct choices *choices)
{
    free(choices->classes);
    pthread_mutex_destroy(&choices->lock);
}

/* Finds the key's class. NULL: the key is new, and *ret_free is its place. */
static struct choice_class *find(const struct choices *choices, uint64_t key, struct choice_class **ret_free)
{
    struct choice_class *at =
        choices->classes + (key * UINT64_C(0x9e3779b97f4a7c15) >> 32) % (CHOICE_CLASSES / PLACES) * PLACES;

    *ret_free = at;
    for (unsigned i = 0; i < PLACES; i++) {
        if (at[i].key == key)
            return &at[i];
        if (at[i].used_at < (*ret_free)->used_at) /* 0 for free places */
            *ret_free = &at[i];
    }
    return NULL;
}

static bool is_due(const struct choice_class *c, unsigned way)
{
    const double ratio = c->ways[way].best / fmin(c->ways[0].best, c->ways[1].best);
    const double slower = isfinite(ratio) ? ratio : 1; /* infinite or NaN before the first measurement */

    return (c->ways[way].turns < TURNS && slower < HOPELESS) || SHARE * slower * c->ways[way].turns < (double)c->uses;
}

struct choice_turn choices_next(struct choices *choices, uint64_t key)
{
    struct choice_turn turn = {0, false};
    struct choice_class *c, *place;

    if (!choices->classes)
        return turn;
    pthread_mutex_lock(&choices->lock);
    c = find(choices, key, &place);
    if (!c) {
        c = place;
        *c = (struct choice_class){.key = key, .ways = {{.best = INFINITY}, {.best = INFINITY}}};
    }
    c->used_at = ++choices->now;
    c->uses++;
    turn.way = c->ways[1].turns < c->ways[0].turns;
    if (!is_due(c, turn.way))
        turn.way = !turn.way;
    turn.measure = is_due(c, turn.way);
    if (turn.measure)
        c->ways[turn.way].turns++;
    else
        turn.way = c->chosen;
    pthread_mutex_unlock(&choices->lock);
    return turn;
}

void choices_report(struct choices *choices, uint64_t key, unsigned way, double ns, double work)
{
    struct choice_class *c, *place;

    pthread_mutex_lock(&choices->lock);
    c = find(choices, key, &place);
    if (c) {
        if (c->ways[way].reports++ > 0)
            c->ways[way].best = fmin(c->ways[way].best, ns / work);
        if (c->ways[way].best * GAIN < c->ways[c->chosen].best)
            c->chosen = way;
    }
    pthread_mutex_unlock(&choices->lock);
}

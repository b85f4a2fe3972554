/* Results of tunings that had no time for all candidates of their problem. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/tune/room.h"

static int find(const struct tune *t, const struct tuning_key *key)
{
    for (unsigned i = t->n_unfinished; i-- > 0;)
        if (memcmp(&t->unfinished[i].key, key, sizeof(*key)) == 0)
            return (int)i;
    return -1;
}

static void drop(struct tune *t, unsigned at)
{
    memmove(&t->unfinished[at], &t->unfinished[at + 1], (t->n_unfinished - at - 1) * sizeof(*t->unfinished));
    t->n_unfinished--;
}

static const struct unfinished_candidate *find_candidate(const struct unfinished *u, uint64_t choice)
{
    for (unsigned i = 0; i < u->n; i++)
        if (u->tried[i].choice == choice)
            return &u->tried[i];
    return NULL;
}

void unfinished_recall(const struct tune *t, struct tuning_result *r)
{
    const int at = find(t, &r->key);

    for (unsigned i = 0; at >= 0 && i < r->n; i++) {
        struct tuning_candidate *c = &r->candidates[i];
        const struct unfinished_candidate *known =
            find_candidate(&t->unfinished[at], tuning_hash(&c->choice, sizeof(c->choice)));

        if (!known)
            continue;
        c->tried = 1;
        c->us = known->failed ? (double)NAN : (double)known->us;
        c->state = known->failed ? TUNING_FAILED : TUNING_SLOWER;
    }
}

void unfinished_add(void *tune, const struct unfinished *u)
{
    struct tune *t = tune;

    if (!t->unfinished)
        t->unfinished = calloc(UNFINISHED_MAX, sizeof(*t->unfinished));
    if (!t->unfinished)
        return;
    if (t->n_unfinished == UNFINISHED_MAX)
        drop(t, 0);
    t->unfinished[t->n_unfinished++] = *u;
}

void unfinished_keep(struct tune *t, struct store *store, const struct tuning_result *r)
{
    const int at = find(t, &r->key);
    struct unfinished u = {.key = r->key};

    if (at >= 0)
        drop(t, (unsigned)at);
    for (unsigned i = 0; i < r->n && tuning_tried(r) < r->n; i++) {
        const struct tuning_candidate *c = &r->candidates[i];

        if (c->tried)
            u.tried[u.n++] = (struct unfinished_candidate){tuning_hash(&c->choice, sizeof(c->choice)), (float)c->us,
                                                           c->state == TUNING_FAILED};
    }
    if (u.n)
        unfinished_add(t, &u);
    if (u.n || at >= 0)
        store_put_unfinished(store, &u);
}

void unfinished_clear(struct tune *t)
{
    t->n_unfinished = 0;
}

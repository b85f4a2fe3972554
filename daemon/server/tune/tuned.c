/* Results of tunings: the choices that were made, as a list for people and the table for devices; and tunings that had
 * no time for all candidates of their problem. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/tune/room.h"

/* ---- choices ---- */

bool tune_users_has(const struct tune_users *users, uid_t uid)
{
    for (uint32_t i = 0; i < users->n; i++)
        if (users->uids[i] == uid)
            return true;
    return false;
}

void tune_users_add(struct tune_users *users, uid_t uid)
{
    if (tune_users_has(users, uid))
        return;
    if (users->n == TUNE_USERS_MAX)
        memmove(users->uids, users->uids + 1, --users->n * sizeof(users->uids[0]));
    users->uids[users->n++] = uid;
}

void tune_users_join(struct tune_users *users, const struct tune_users *more)
{
    for (uint32_t i = 0; i < more->n; i++)
        tune_users_add(users, more->uids[i]);
}

const struct tuned *tuned_find(const struct tune *t, const struct tuning_key *key)
{
    for (unsigned i = t->n_tuned; i-- > 0;)
        if (memcmp(&t->tuned[i].key, key, sizeof(*key)) == 0)
            return &t->tuned[i];
    return NULL;
}

/* In place of an older one of the same key, or of the oldest. Under the lock. */
static void remember(struct tune *t, const struct tuned *tuned)
{
    const struct tuned *old = tuned_find(t, &tuned->key);
    const unsigned at = old ? (unsigned)(old - t->tuned) : t->n_tuned == TUNED_MAX ? 0 : t->n_tuned;

    if (!t->tuned)
        t->tuned = calloc(TUNED_MAX, sizeof(*t->tuned));
    if (!t->tuned)
        return;
    if (at < t->n_tuned) {
        memmove(&t->tuned[at], &t->tuned[at + 1], (t->n_tuned - at - 1) * sizeof(*t->tuned));
        t->n_tuned--;
    }
    t->tuned[t->n_tuned++] = *tuned;
}

void tuned_publish(void *tune, const struct tuned *tuned)
{
    struct tune *t = tune;

    pthread_mutex_lock(&t->lock);
    remember(t, tuned);
    pthread_mutex_unlock(&t->lock);
    tuning_table_put(t->table, &tuned->key, &tuned->choice);
}

/* ---- unfinished tunings ---- */

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

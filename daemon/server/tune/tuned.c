/* The choices that were made: a list for people, and the table for devices. */
#include <stdlib.h>
#include <string.h>

#include "server/tune/room.h"

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

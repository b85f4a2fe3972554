#include "executor/ids.h"

#include <stdlib.h>

void ids_init(struct ids *t, uint32_t max)
{
    *t = (struct ids){.max = max};
}

void ids_free(struct ids *t)
{
    free(t->free);
    t->free = NULL;
}

/* Room for every number that is out, so that giving one back cannot fail. */
static int make_room(struct ids *t)
{
    const uint32_t room = t->room ? 2 * t->room : 64;
    uint32_t *free = realloc(t->free, room * sizeof(*free));

    if (!free)
        return -1;
    t->free = free;
    t->room = room;
    return 0;
}

uint32_t ids_take(struct ids *t)
{
    if (t->n_free)
        return t->free[--t->n_free];
    if (t->highest == t->max || (t->highest == t->room && make_room(t) < 0))
        return 0;
    return ++t->highest;
}

void ids_give(struct ids *t, uint32_t id)
{
    if (id)
        t->free[t->n_free++] = id;
}

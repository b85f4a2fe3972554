/* Small dense numbers, given out lowest first after those that came back. Not thread safe. */
#ifndef KOPS_EXECUTOR_IDS_H
#define KOPS_EXECUTOR_IDS_H

#include <stdint.h>
#include <stdlib.h>

struct ids {
    uint32_t *free; /* owned: numbers that came back; room for every number that is out */
    uint32_t n_free, room, highest, max;
};

static inline void ids_init(struct ids *t, uint32_t max)
{
    *t = (struct ids){.max = max};
}

static inline void ids_free(struct ids *t)
{
    free(t->free);
    t->free = NULL;
}

/* From 1 to max; 0: none is left, or no memory. */
static inline uint32_t ids_take(struct ids *t)
{
    if (t->n_free)
        return t->free[--t->n_free];
    if (t->highest == t->max)
        return 0;
    if (t->highest == t->room) {
        const uint32_t room = t->room ? 2 * t->room : 64;
        uint32_t *more = (uint32_t *)realloc(t->free, room * sizeof(*more));

        if (!more)
            return 0;
        t->free = more;
        t->room = room;
    }
    return ++t->highest;
}

/* Harmless with 0. */
static inline void ids_give(struct ids *t, uint32_t id)
{
    if (id)
        t->free[t->n_free++] = id;
}

#endif

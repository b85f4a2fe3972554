#include "util/idtable.h"

#include <stdlib.h>

/* An id is a generation and, in its low bits, the slot's number plus one: the id 0 has no slot. */
enum { SLOT_BITS = 20, SLOT_MASK = (1 << SLOT_BITS) - 1, NO_SLOT = UINT32_MAX };

struct idtable_slot {
    void *pointer; /* NULL: free */
    uint32_t generation, next_free;
};

void idtable_init(struct idtable *t, uint32_t max)
{
    *t = (struct idtable){.free_head = (uint32_t)NO_SLOT, .max = max};
}

void idtable_free(struct idtable *t)
{
    free(t->slots);
    idtable_init(t, t->max);
}

uint64_t idtable_add(struct idtable *t, void *pointer)
{
    uint32_t slot;

    if (t->used >= t->max)
        return 0;
    if (t->free_head == (uint32_t)NO_SLOT) {
        uint32_t capacity = t->capacity ? 2 * t->capacity : 16;
        struct idtable_slot *slots = realloc(t->slots, capacity * sizeof(*slots));

        if (!slots)
            return 0;
        t->slots = slots;
        for (uint32_t i = capacity; i-- > t->capacity;) {
            slots[i] = (struct idtable_slot){.next_free = t->free_head};
            t->free_head = i;
        }
        t->capacity = capacity;
    }
    slot = t->free_head;
    t->free_head = t->slots[slot].next_free;
    t->slots[slot].pointer = pointer;
    t->used++;
    return (uint64_t)t->slots[slot].generation << SLOT_BITS | (slot + 1);
}

void *idtable_get(const struct idtable *t, uint64_t id)
{
    const uint64_t slot = (id & SLOT_MASK) - 1;

    return slot < t->capacity && t->slots[slot].generation == id >> SLOT_BITS ? t->slots[slot].pointer : NULL;
}

void *idtable_remove(struct idtable *t, uint64_t id)
{
    void *pointer = idtable_get(t, id);
    struct idtable_slot *s;

    if (!pointer)
        return NULL;
    s = &t->slots[(id & SLOT_MASK) - 1];
    s->pointer = NULL;
    s->generation++;
    s->next_free = t->free_head;
    t->free_head = (uint32_t)(s - t->slots);
    t->used--;
    return pointer;
}

void *idtable_at(const struct idtable *t, uint32_t i)
{
    return i < t->capacity ? t->slots[i].pointer : NULL;
}
